# The official Java client as tests/interop/java builds it, for pods: the context is the folder of its class paths.
ARG BASE_IMAGE=python:3.11-slim
FROM ${BASE_IMAGE}
RUN apt-get update \
    && apt-get install -y --no-install-recommends default-jre-headless \
    && rm -rf /var/lib/apt/lists/*
COPY driver49 /opt/driver49
COPY driver55 /opt/driver55
USER 10001:10001
WORKDIR /tmp
