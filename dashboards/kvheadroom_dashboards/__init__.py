"""The Grafana dashboards, made from the metric catalogue so that unit and help are written once."""

import warnings

with warnings.catch_warnings():
    # The SDK prefers its second schema, which Grafana 10 and 11 do not read.
    warnings.simplefilter("ignore", DeprecationWarning)
    import grafana_foundation_sdk.builders.dashboard
    import grafana_foundation_sdk.builders.prometheus  # noqa: F401
