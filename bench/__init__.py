"""Side-by-side runs against peers. Each prints ratios from one run on one machine, with its inputs named."""
