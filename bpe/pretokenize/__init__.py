"""Split text into pre-tokens: patterns, their scanners, and regexes that have no scanner."""
