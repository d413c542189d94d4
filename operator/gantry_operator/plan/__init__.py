"""From a spec to members, their configs and their order of replacement. Pure."""
