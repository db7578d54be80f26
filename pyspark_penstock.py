"""Found by Spark by its name: makes `format("penstock")` work without a call to register it.

Spark imports every module whose name begins with `pyspark_` and drops all of them if one fails, so
this one imports as little as it can; what a source or sink needs is loaded when it is made.
"""

from penstock.connector.data_source import PenstockDataSource as DefaultSource

__all__ = ["DefaultSource"]
