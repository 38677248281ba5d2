"""The ledger: what a fold says that later turns may need, as short verbatim lines."""
