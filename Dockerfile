# Any party, or the hub: `docker run IMAGE trainer run /party`. The compiler builds the engine's kernels at first use, into
# the cache folder; without it the same bits come out, more slowly.
FROM python:3.11-slim-bookworm AS build
RUN apt-get update && apt-get install -y --no-install-recommends gcc libc6-dev && rm -rf /var/lib/apt/lists/*
WORKDIR /src
COPY constraints.txt pyproject.toml setup.py MANIFEST.in README.md LICENSE ./
COPY contracts/artifacts contracts/artifacts
COPY corpus corpus
COPY tiebreak tiebreak
# Where another build of torch is, such as the smaller one for processors alone.
ARG PIP_EXTRA_INDEX_URL=
RUN python -m venv /usr/local/tiebreak \
    && PIP_CONSTRAINT=constraints.txt /usr/local/tiebreak/bin/pip install --no-cache-dir '.[node,postgres,train]'

FROM python:3.11-slim-bookworm
RUN apt-get update && apt-get install -y --no-install-recommends gcc libc6-dev && rm -rf /var/lib/apt/lists/* \
    && useradd --uid 1000 tiebreak && install -d -o tiebreak -m 700 /party /cache
COPY --from=build /usr/local/tiebreak /usr/local/tiebreak
ENV PATH=/usr/local/tiebreak/bin:$PATH PYTHONUNBUFFERED=1 XDG_CACHE_HOME=/cache
USER tiebreak
WORKDIR /party
VOLUME /party
ENTRYPOINT ["tiebreak"]
CMD ["--help"]
