import duckdb
import pandas as pd
from pyarrow import dataset

# DuckDB reads the columns that the query names.
obs = dataset.dataset("mnt/.npyfs/arrow/obs.arrow", format="ipc")
answer = duckdb.sql("""
    SELECT cell_type, count(*) AS cells, round(avg(n_genes), 2) AS genes
    FROM obs WHERE n_genes > 5 GROUP BY cell_type ORDER BY cell_type
""")
for row in answer.fetchall():
    print(*row)

# pandas has its own types: cell_type is a categorical.
frame = pd.read_feather("mnt/.npyfs/arrow/obs.arrow", columns=["cell_type", "n_genes"])
print(frame.groupby("cell_type", observed=True)["n_genes"].max().to_dict())
