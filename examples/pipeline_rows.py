"""Turn text into packed rows, and read them in batches: a pipeline in EasyDeL's spelling.

    python examples/pipeline_rows.py "data/*.jsonl" --tokenizer gpt2 --output packed

Run again, it finds the rows up to date. With text in a bucket, give its URL.
"""

from __future__ import annotations

import argparse

from preprocess import (
    AsyncDataLoader,
    DatasetConfig,
    PackStageConfig,
    ParquetShardedSource,
    Pipeline,
    PipelineConfig,
    SaveStageConfig,
    TokenizerConfig,
    TokenizeStageConfig,
)


def main(arguments: list[str] | None = None) -> None:
    """Write the rows, and print the shapes of the first batch."""
    parser = argparse.ArgumentParser(description="Turn text into packed rows of tokens.")
    parser.add_argument("data_files", nargs="+", help="JSON Lines, Parquet, Arrow or text files")
    parser.add_argument("--tokenizer", help="path or name; without it one is trained")
    parser.add_argument("--content-field", default=(), help="field that has the text")
    parser.add_argument("--seq-length", type=int, default=2048)
    parser.add_argument("--output", default="packed")
    given = parser.parse_args(arguments)
    config = PipelineConfig(
        datasets=[DatasetConfig(data_files=given.data_files, content_field=given.content_field)],
        tokenizer=TokenizerConfig(name_or_path=given.tokenizer, trust_remote_code=True),
        tokenize=TokenizeStageConfig(max_length=given.seq_length, batch_size=1000),
        pack=PackStageConfig(
            enabled=True, seq_length=given.seq_length, strategy="greedy", include_segment_ids=True
        ),
        save=SaveStageConfig(
            enabled=True, output_dir=given.output, format="parquet", compression="zstd",
            num_shards=4, max_shard_size="500MB",
        ),
    )
    result = Pipeline.from_config(config).source().tokenize().pack().save().build()
    print("\n".join(result.lines))
    source = ParquetShardedSource(f"{given.output}/*.parquet")
    batches = AsyncDataLoader(
        source=source, batch_size=8, prefetch_enabled=True, prefetch_buffer_size=4
    )
    for batch in batches:
        print({name: values.shape for name, values in batch.items()})
        state = source.state_dict()  # load_state_dict(state) continues after this batch
        print(f"{len(source):,} rows; the next batch begins after {state['place']}")
        break


if __name__ == "__main__":
    main()
