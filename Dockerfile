# One file, three targets: operator, broker, spark.
#   docker build --target broker -t gantry-broker:dev .
# BASE_IMAGE is any image with Python 3.11 or later, pip and a Debian userland. The digest is that of the image for all
# platforms. A release brings it up to date (CONTRIBUTING.md, "A release").
# All stages use this one base, and the label org.opencontainers.image.base.name says which it was.
ARG BASE_IMAGE=python:3.11-slim@sha256:e41613d42d4891e4930f79523f93f81bbc7632584ec65e36ab055f41a800b41e

# --- what each image runs is installed apart from pip and its caches, into one folder that is then copied -----------
FROM ${BASE_IMAGE} AS install
ENV PIP_NO_CACHE_DIR=1 PIP_DISABLE_PIP_VERSION_CHECK=1 PIP_ROOT_USER_ACTION=ignore PYTHONDONTWRITEBYTECODE=1
WORKDIR /build

# --- the compiled core, with Debian's own Rust; crates are those of Cargo.lock -----------------------------------------
FROM install AS core
# Debian 12's own cargo is too old for today's registry; it has a newer one beside it.
RUN apt-get update \
    && apt-get install -y --no-install-recommends gcc libc6-dev \
        $(apt-cache show cargo-web >/dev/null 2>&1 && echo cargo-web || echo cargo) \
    && rm -rf /var/lib/apt/lists/*
# Cargo checks each crate against its hash as it vendors it, and each of its files again as it builds; only this step has
# a use for the network. An empty library is enough to vendor, so that a change of the sources leaves this layer alone.
COPY broker_image/gantry_core/Cargo.toml broker_image/gantry_core/Cargo.lock gantry_core/
RUN mkdir -p .cargo gantry_core/src && touch gantry_core/src/lib.rs \
    && cargo vendor --locked --manifest-path gantry_core/Cargo.toml crates > .cargo/config.toml
COPY broker_image/gantry_core gantry_core
RUN CARGO_NET_OFFLINE=true python gantry_core/build.py --must \
    && mkdir -p /opt/gantry/gantry_core \
    && cp gantry_core/*.py gantry_core/*.so /opt/gantry/gantry_core/ \
    && PYTHONPATH=/opt/gantry GANTRY_CORE=rust python -c "import gantry_core"

FROM install AS install-broker
COPY requirements/broker.txt .
RUN python -m pip install --require-hashes --no-deps --target /opt/gantry -r broker.txt
COPY --from=core /opt/gantry/gantry_core /opt/gantry/gantry_core
COPY broker_image/gantry_broker /opt/gantry/gantry_broker
RUN python -m compileall -q -j 2 /opt/gantry

FROM install AS install-operator
COPY requirements/operator.txt .
RUN python -m pip install --require-hashes --no-deps --target /opt/gantry -r operator.txt
# The operator speaks to the API in plain objects: of the Kubernetes client it uses the connection and the credentials,
# not the classes for each resource, which are three quarters of what it installs.
RUN cd /opt/gantry/kubernetes && for part in client/api client/models aio/client/api aio/client/models; do \
    find "$part" -name '*.py' ! -name __init__.py -delete; done
COPY --from=core /opt/gantry/gantry_core /opt/gantry/gantry_core
COPY broker_image/gantry_broker /opt/gantry/gantry_broker
COPY operator/gantry_operator /opt/gantry/gantry_operator
RUN python -m compileall -q -j 2 /opt/gantry && PYTHONPATH=/opt/gantry python -c "import gantry_operator.platforms.kubernetes.operator"

FROM install AS install-spark
COPY requirements/spark.txt .
RUN python -m pip install --require-hashes --no-deps --target /opt/gantry -r spark.txt
COPY --from=core /opt/gantry/gantry_core /opt/gantry/gantry_core
COPY broker_image/gantry_broker /opt/gantry/gantry_broker
COPY spark_jobs/gantry_spark /opt/gantry/gantry_spark
RUN python -m compileall -q -j 2 /opt/gantry/gantry_broker /opt/gantry/gantry_spark

# --- a user with a name, since some libraries ask for it; the number is the one that the pods run as -----------------
FROM ${BASE_IMAGE} AS runtime
ARG BASE_IMAGE
LABEL org.opencontainers.image.title="gantry" org.opencontainers.image.version="0.1.0" \
    org.opencontainers.image.licenses="Apache-2.0" org.opencontainers.image.base.name="${BASE_IMAGE}"
RUN groupadd --gid 10001 gantry \
    && useradd --uid 10001 --gid gantry --no-create-home --home-dir /var/lib/gantry --shell /usr/sbin/nologin gantry \
    && mkdir -p /var/lib/gantry && chown gantry:gantry /var/lib/gantry
ENV PYTHONPATH=/opt/gantry PATH=/opt/gantry/bin:$PATH PYTHONUNBUFFERED=1 PYTHONDONTWRITEBYTECODE=1
USER 10001:10001
WORKDIR /var/lib/gantry

FROM runtime AS broker
COPY --from=install-broker /opt/gantry /opt/gantry
CMD ["python", "-m", "gantry_broker.broker", "--help"]

FROM runtime AS operator
COPY --from=install-operator /opt/gantry /opt/gantry
CMD ["python", "-m", "gantry_operator.platforms.kubernetes.operator"]

# Spark needs a Java runtime besides; the default one of Debian (17 in bookworm, 21 in trixie), without a display.
FROM runtime AS spark
USER 0
RUN apt-get update \
    && apt-get install -y --no-install-recommends default-jre-headless tini \
    && rm -rf /var/lib/apt/lists/*
COPY --from=install-spark /opt/gantry /opt/gantry
ENV SPARK_HOME=/opt/gantry/pyspark PYSPARK_PYTHON=python PYSPARK_DRIVER_PYTHON=python
USER 10001:10001
ENTRYPOINT ["tini", "-s", "--", "python", "-m", "gantry_spark.entrypoint"]
