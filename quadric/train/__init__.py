"""Training: recipes, runs and their results. The only place that imports lightning.

`recipe` and `catalog` say what a run is, `directory` where it is kept, `training` trains it,
`evaluation` and `arms` look at runs, `grid` makes many. Only `module`, `callbacks` and
`fitting` import lightning, which takes seconds: reading a recipe or a result does not.
"""
