"""The chart's Grafana dashboards, described in Python.

`boards/` says what each dashboard shows, `style.py` has colours and units, `grafana.py` writes Grafana's JSON and
`pictures.py` draws the pictures of docs/dashboards. `python -m helm.dashboards` writes helm/gantry/dashboards/*.json.
"""
