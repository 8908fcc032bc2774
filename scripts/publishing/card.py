"""The Hub's page of the package: CARD.md as kernel-builder's fill-card renders it (its card.rs)."""

from builder import BuildConfig


def render_card(config: BuildConfig, **instead) -> str:
    """`instead` replaces values of the template, for tests."""
    import jinja2

    general = config.table["general"]
    values = dict(
        repo_id=config.repo_id,
        version=general["version"],
        # fill-card guesses functions and layers from the sources; the card lists them itself.
        functions=None,
        layers=None,
        has_benchmark=(config.root / "benchmarks" / "benchmark.py").is_file(),
        upstream=general.get("upstream"),
        source=general.get("source"),
        license=general["license"].lower(),
    )
    environment = jinja2.Environment(trim_blocks=True, undefined=jinja2.StrictUndefined)
    template = environment.from_string((config.root / "CARD.md").read_text(encoding="utf-8"))
    return template.render(**values | instead)
