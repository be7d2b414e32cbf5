import duckdb
import numpy as np


def column(name):
    values = np.load(f"mnt/{name}.npy")
    return np.char.decode(values, "utf-8") if values.dtype.kind == "S" else values


# DuckDB reads a dict of NumPy arrays as a table.
trips = {name: column(name) for name in ["carrier", "distance", "departure"]}
answer = duckdb.sql("""
    SELECT carrier, count(*) AS trips, round(avg(distance)) AS miles, max(departure)::DATE AS last
    FROM trips GROUP BY carrier ORDER BY miles DESC LIMIT 3
""")
for row in answer.fetchall():
    print(*row)

duckdb.sql("COPY (SELECT * FROM trips WHERE distance > 1000) TO 'long.parquet'")
print("long.parquet:", duckdb.sql("SELECT count(*) FROM 'long.parquet'").fetchall()[0][0], "rows")
