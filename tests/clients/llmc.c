/* Reads shards as llm.c's data loader does, and prints every token: the same checks of header and
   size, the same order of files (glob's), the same batches of B * T + 1 tokens that move by B * T.
   Besides its own header (magic 20240520, version 1, uint16) it takes the one of its Llama 3 scripts
   (20240801, 7, uint32).

   llmc PATTERN B T: for each file a line "file N", then a line "batch" with B * T inputs and the last
   target for each batch, and a line "rest" with the tokens that no batch has. */
#include <glob.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>

static void fail(const char *what, const char *path) {
    fprintf(stderr, "%s: %s\n", path, what);
    exit(1);
}

static void print_tokens(const char *name, const unsigned char *data, long size, long from, long to) {
    printf("%s", name);
    for (long i = from; i < to; i++)
        printf(" %lu", size == 2 ? (unsigned long)((const uint16_t *)data)[i]
                                 : (unsigned long)((const uint32_t *)data)[i]);
    printf("\n");
}

static void read_shard(const char *path, long batch) {
    int32_t header[256];
    FILE *file = fopen(path, "rb");
    if (!file || fread(header, sizeof(int32_t), 256, file) != 256) fail("no header", path);
    int is_gpt2 = header[0] == 20240520 && header[1] == 1;
    if (!is_gpt2 && !(header[0] == 20240801 && header[1] == 7)) fail("bad magic or version", path);
    long size = is_gpt2 ? 2 : 4, n = header[2];
    fseek(file, 0, SEEK_END);
    if (ftell(file) != 1024 + n * size) fail("the size is not that of the header", path);
    if (n < batch + 1) fail("fewer tokens than a batch", path);
    unsigned char *data = malloc(n * size);
    fseek(file, 1024, SEEK_SET);
    if (!data || fread(data, size, n, file) != (size_t)n) fail("cannot be read", path);
    fclose(file);
    printf("file %ld\n", n);
    long n_batches = (n - 1) / batch;
    for (long i = 0; i < n_batches; i++) print_tokens("batch", data, size, i * batch, (i + 1) * batch + 1);
    print_tokens("rest", data, size, n_batches * batch, n);
    free(data);
}

int main(int argc, char **argv) {
    glob_t found;
    if (argc != 4 || glob(argv[1], 0, NULL, &found)) fail("no files", argc > 1 ? argv[1] : "llmc");
    for (size_t i = 0; i < found.gl_pathc; i++) read_shard(found.gl_pathv[i], atol(argv[2]) * atol(argv[3]));
    globfree(&found);
    return 0;
}
