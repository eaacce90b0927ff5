#!/bin/sh
# Prometheus and promtool for the tests, in CI where Debian's package can be had: unpacked into the
# folder named, beside the tests' Python; the system is not changed. Never fails: without them the
# tests that need them are skipped and say so.
#
#   tests/get_prometheus.sh .venv/bin
into=$1
for there in "$into/promtool" "$(command -v promtool)"; do
  [ -x "$there" ] && exit 0
done
if [ -z "$CI" ] || ! command -v apt-get >/dev/null; then
  echo "== no promtool: the alerts' tests are skipped (Debian: apt-get install --no-install-recommends prometheus)"
  exit 0
fi

folder=$(mktemp -d) # its own package lists, too: those of the system may be old or none
trap 'rm -rf "$folder"' EXIT
mkdir -p "$folder/lists/partial" "$folder/cache/archives/partial"
apt="apt-get -qq -o Dir::State::lists=$folder/lists -o Dir::Cache=$folder/cache -o APT::Sandbox::User=root"
cd "$folder" && timeout 60 sh -c "$apt update && $apt download prometheus" >log 2>&1 &&
  dpkg-deb -x prometheus_*.deb . && cd "$OLDPWD" &&
  cp "$folder/usr/bin/prometheus" "$folder/usr/bin/promtool" "$into" &&
  echo "== prometheus and promtool are in $into" && exit 0
echo "== no prometheus could be had; the alerts' tests are skipped: $(tail -n 1 "$folder/log")"
exit 0
