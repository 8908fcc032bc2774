"""What the tests of the benchmarks read out of their reports."""


def tables(text: str) -> list[list[str]]:
    """The cells of each line of the Markdown tables in `text`."""
    return [[cell.strip() for cell in line.strip("|").split("|")] for line in text.splitlines() if line.startswith("|")]
