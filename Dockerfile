# syntax=docker/dockerfile:1
#
# A replica: `coldstart serve` with a handler, as a platform starts it. infra/README.md says how to build and run it.
#
#   docker build -t coldstart-adapter .
#   docker build -t coldstart-adapter --build-arg TORCH_INDEX=https://download.pytorch.org/whl/cu130 .
#
# Layers from the one that changes least to the one that changes most: system, torch, dependencies, this package,
# handlers. A change of code moves 2.5 MB; torch (880 MB on CPU, gigabytes on CUDA) stays where it is.

ARG DEBIAN=debian:trixie-slim

# -- what every stage stands on ---------------------------------------------------------------------------------------
FROM ${DEBIAN} AS base
# Debian's own versions, with its security updates: a pin would be gone from the mirrors after the next one
# hadolint ignore=DL3008
RUN apt-get update \
    && DEBIAN_FRONTEND=noninteractive apt-get install -y --no-install-recommends ca-certificates python3 \
    && rm -rf /var/lib/apt/lists/*

FROM base AS tools
ENV PIP_DISABLE_PIP_VERSION_CHECK=1 PIP_ROOT_USER_ACTION=ignore PIP_NO_COMPILE=1
# hadolint ignore=DL3008
RUN apt-get update \
    && DEBIAN_FRONTEND=noninteractive apt-get install -y --no-install-recommends python3-venv \
    && rm -rf /var/lib/apt/lists/*
# pip lives beside the environment that it fills: the image gets none
RUN python3 -m venv /opt/tools && python3 -m venv --without-pip /opt/coldstart

# -- what is asked for, as files: a stage below is built again when its file changed, not at each edit of pyproject.toml
FROM base AS requirements
WORKDIR /requirements
COPY pyproject.toml constraints.txt ./
RUN python3 -c 'import tomllib; p = tomllib.load(open("pyproject.toml", "rb"))["project"]; print(*p["dependencies"], *p["optional-dependencies"]["examples"], sep="\n")' > requirements.txt \
    && grep '^torch==' constraints.txt > torch.txt

# -- torch: from an index of its own, since its CPU and CUDA builds differ in nothing but the index ---------------------
FROM tools AS torch
ARG TORCH_INDEX=https://download.pytorch.org/whl/cpu
COPY --from=requirements /requirements/torch.txt /requirements/
# Byte code is made here, since the image's user cannot write it: without it `import torch` compiles 2 000 files at every
# start. unchecked-hash: it holds whatever times a registry or a rebuild gives to the files. Packages ship files for other
# versions of Python, which cannot be compiled and are never imported: that is no failure, no byte code at all is one.
RUN --mount=type=cache,target=/root/.cache/pip \
    /opt/tools/bin/pip --python /opt/coldstart/bin/python install --index-url "${TORCH_INDEX}" -r /requirements/torch.txt \
    && { python3 -m compileall -qq -j 0 --invalidation-mode unchecked-hash /opt/coldstart/lib || true; } \
    && ls /opt/coldstart/lib/python3*/site-packages/torch/__pycache__/__init__.*.pyc

# -- the other dependencies, as a tree of their own: pip sees that torch is there and leaves it out ---------------------
FROM torch AS dependencies
# more for your own handlers, divided by blanks: --build-arg REQUIREMENTS="pillow>=11 einops"
ARG REQUIREMENTS=""
COPY --from=requirements /requirements/requirements.txt /requirements/constraints.txt /requirements/
# hadolint ignore=SC2086
RUN --mount=type=cache,target=/root/.cache/pip \
    /opt/tools/bin/pip --python /opt/coldstart/bin/python install --root /layer \
        -c /requirements/constraints.txt -r /requirements/requirements.txt ${REQUIREMENTS} \
    && { python3 -m compileall -qq -j 0 --invalidation-mode unchecked-hash -s /layer -p / /layer || true; } \
    && ls /layer/opt/coldstart/lib/python3*/site-packages/botocore/__pycache__/__init__.*.pyc

# -- this package -------------------------------------------------------------------------------------------------------
FROM tools AS package
WORKDIR /source
COPY pyproject.toml README.md LICENSE ./
COPY adapter adapter
RUN --mount=type=cache,target=/root/.cache/pip \
    /opt/tools/bin/pip --python /opt/coldstart/bin/python install --root /layer --no-deps . \
    && python3 -m compileall -q -j 0 --invalidation-mode unchecked-hash -s /layer -p / /layer

# -- user code ----------------------------------------------------------------------------------------------------------
FROM base AS handlers
COPY handlers /layer/app/handlers
# checked-hash: an image made from this one may replace a handler, and must not run the old byte code
RUN python3 -m compileall -q --invalidation-mode checked-hash -s /layer -p / /layer

# -- the image: no compiler, no pip, no cache ---------------------------------------------------------------------------
FROM base
# The cache is like /tmp: root's, and anyone's to fill, so that a platform may choose the uid. The adapter refuses what
# another user put there. A volume belongs on it; VOLUME itself would leave one model on disk for every `docker run`.
RUN useradd --uid 10001 --user-group --create-home --shell /usr/sbin/nologin coldstart \
    && install -d -m 1777 /var/cache/coldstart
COPY infra/healthcheck.py /opt/healthcheck.py
COPY --from=torch /opt/coldstart /opt/coldstart
COPY --from=dependencies /layer/ /
COPY --from=package /layer/ /
COPY --from=handlers /layer/ /

# LD_LIBRARY_PATH is empty on purpose: CUDA base images fill it, and then every library of torch is looked for in the
# wrong directories first. torch finds its own by RPATH, the driver by ld.so.cache.
# NVIDIA_DRIVER_CAPABILITIES: what the container toolkit is to mount; on a plain Debian nothing else says it.
ENV PATH=/opt/coldstart/bin:/usr/local/sbin:/usr/local/bin:/usr/sbin:/usr/bin:/sbin:/bin \
    PYTHONUNBUFFERED=1 \
    LD_LIBRARY_PATH="" \
    NVIDIA_DRIVER_CAPABILITIES=compute,utility \
    COLDSTART_CACHE_DIR=/var/cache/coldstart
WORKDIR /app
# a number: Kubernetes' runAsNonRoot cannot look a name up
USER 10001:10001
EXPOSE 8080
STOPSIGNAL SIGTERM
# liveness, not readiness: who replaces unhealthy containers must not cut a start short
HEALTHCHECK --interval=10s --timeout=3s --start-period=5s --retries=3 \
    CMD ["/usr/bin/python3", "-I", "-S", "/opt/healthcheck.py"]
# exec form: the supervisor is PID 1, gets the signals, and reaps what is left to it; no init wrapper is needed
ENTRYPOINT ["coldstart"]
CMD ["serve", "handlers.text_embedding:embed"]

# last, since they change with every commit and nothing is built on them
ARG VERSION=0.1.0
ARG REVISION=""
LABEL org.opencontainers.image.title="coldstart-adapter" \
      org.opencontainers.image.description="A GPU function's handler whose cold start costs what physics asks for" \
      org.opencontainers.image.licenses="Apache-2.0" \
      org.opencontainers.image.version="${VERSION}" \
      org.opencontainers.image.revision="${REVISION}"
