"""CK's batched GEMM with D as AMD's article on SmoothQuant uses it: linear_abde_i8. Nothing of it has a published time.

The article's tile is the first of INSTANCES. The others are tiles that CK builds for other INT8 GEMMs: for the same
operation by the same device class, and by its newer V3, with the pipelines that AITER's tables choose on an MI300X.
V3's 256x256x128 of these spills with clang 22, and is left out.
"""

import math
from dataclasses import dataclass
from pathlib import Path

from simulator.calibration.pairs import Library, Pair


@dataclass(frozen=True)
class Instance:
    threads: int
    rows: int
    columns: int
    k: int
    subtiles: tuple[int, int]  # of 32 x 32, that a wave has
    pipeline: str = ""  # of V3; none: DeviceBatchedGemmMultiD_Xdl
    scheduler: str = "Intrawave"

    @property
    def name(self) -> str:
        tile = f"{self.threads}x{self.rows}x{self.columns}x{self.k}"
        return f"{tile} {self.pipeline}{' inter' * (self.scheduler == 'Interwave')}".strip()

    def library(self) -> Library:
        in_k = self.k // 16  # threads beside one another along k; each loads 16 bytes
        load = f"S<{in_k}, {self.threads // in_k}, 1>, S<1, 0, 2>, S<1, 0, 2>, 2, 16, 16, {int(not self.pipeline)}"
        columns = self.columns // self.subtiles[1]  # that all waves store at once, 16 bytes a thread
        vector = "S<16, 16>" if self.pipeline else "16"
        tile = (self.threads, self.rows, self.columns, self.k, 16, 16, 32, 32, *self.subtiles)
        macros = {
            "TILE": ", ".join(map(str, tile)),
            "A": load,
            "B": load,
            "SHUFFLE": f"1, 1, S<1, {self.threads * 16 // columns}, 1, {columns // 16}>, {vector}",
        }
        if self.pipeline:
            macros |= {"PIPELINE": self.pipeline, "SCHEDULER": self.scheduler}
        return Library(
            name=f"ck_smoothquant_{self.name.replace(' ', '_')}",
            source=Path(__file__).with_suffix(".hip"),
            flags=tuple(f"-DPEER_{key}={value}" for key, value in macros.items()),
        )

    def pair(self, m: int, n: int, k: int, broadcast: bool) -> Pair:
        """broadcast: D is one row; else M copies of it, as the article has them."""
        return Pair(
            source="CK, SmoothQuant's linear",
            kind="GEMM, INT8",
            name=f"{self.name}{'' if broadcast else ', D copied'}: {m}x{n}x{k}",
            microseconds=math.nan,
            date="",
            library=self.library(),
            buffers=(m * k, n * k, n if broadcast else m * n, m * n),
            sizes=(m, n, k, 0 if broadcast else n),
        )


INSTANCES = (
    Instance(256, 64, 64, 64, (1, 1)),
    Instance(256, 128, 128, 64, (2, 2)),
    Instance(256, 256, 128, 64, (4, 2)),
    Instance(256, 128, 256, 64, (2, 4)),
    Instance(128, 32, 64, 128, (1, 1), "v2"),
    Instance(256, 64, 64, 128, (1, 1), "v3"),
    Instance(256, 64, 128, 256, (1, 2), "v3"),
    Instance(256, 128, 128, 128, (2, 2), "v3"),
)
ARTICLE = INSTANCES[0]
