import polars as pl

trips = pl.scan_ipc("mnt/.npyfs/arrow/root.arrow")
answer = (
    trips.filter(pl.col("distance") > 1000)
    .group_by("carrier")
    .agg(pl.len().alias("trips"), pl.col("distance").mean().round().alias("miles"),
         pl.col("departure").max().dt.date().alias("last"))
    .sort("miles", descending=True)
    .collect()
)
for row in answer.iter_rows():
    print(*row)

# Categories, times, text and lists have types of their own.
for name, kind in trips.collect_schema().items():
    print(f"{name}: {kind}")
