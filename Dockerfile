# Any party, or the hub: `docker run IMAGE trainer run /party`. The engine's kernels are compiled for common processors. On
# another one the compiler builds them at first use, into the cache folder; without it the same bits come out, more slowly.
FROM python:3.11-slim-bookworm@sha256:a36c24f9cbdf4fd0f52d67f0823eeac19c2028c637cecc392d97f980d4fec56b AS build
# hadolint ignore=DL3008
RUN apt-get update && apt-get install -y --no-install-recommends gcc libc6-dev && rm -rf /var/lib/apt/lists/*
WORKDIR /src
COPY scripts/constraints.py scripts/
COPY constraints.txt pyproject.toml setup.py MANIFEST.in README.md LICENSE ./
COPY contracts/artifacts contracts/artifacts
COPY corpus corpus
COPY tiebreak tiebreak
# Where another build of torch is, such as the smaller one for processors alone.
ARG PIP_EXTRA_INDEX_URL=
ARG TIEBREAK_EXTRAS=node,postgres,train
# torch names the Triton that it needs.
RUN python scripts/constraints.py --pins > all.txt \
    && grep -v "^triton==" all.txt > pins.txt \
    && python -m venv /usr/local/tiebreak \
    && PIP_CONSTRAINT=pins.txt TIEBREAK_KERNELS="$(uname -m)" /usr/local/tiebreak/bin/pip install --no-cache-dir ".[$TIEBREAK_EXTRAS]"

FROM python:3.11-slim-bookworm@sha256:a36c24f9cbdf4fd0f52d67f0823eeac19c2028c637cecc392d97f980d4fec56b
# hadolint ignore=DL3008
RUN apt-get update && apt-get install -y --no-install-recommends gcc libc6-dev && rm -rf /var/lib/apt/lists/* \
    && useradd --uid 1000 tiebreak && install -d -o tiebreak -m 700 /party /cache
COPY --from=build /usr/local/tiebreak /usr/local/tiebreak
ENV PATH=/usr/local/tiebreak/bin:$PATH PYTHONUNBUFFERED=1 XDG_CACHE_HOME=/cache
USER 1000:1000
WORKDIR /party
VOLUME /party
ENTRYPOINT ["tiebreak"]
CMD ["--help"]
