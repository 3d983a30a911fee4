#!/bin/sh
# Install Debian's headless Chromium, which the browser tests drive, where it is missing and this may be done.
# Never fails: without a browser those tests are skipped and say so; with CI set they fail instead.
set -u

for name in chromium-headless-shell chromium chromium-browser google-chrome; do
    command -v "$name" >/dev/null && exit 0
done
if [ "$(id -u)" != 0 ] || ! command -v apt-get >/dev/null; then
    echo "install_chromium: no Chromium, and no right to install it (Debian: apt-get install chromium-headless-shell)" >&2
    exit 0
fi
export DEBIAN_FRONTEND=noninteractive
install() {
    apt-get install -y -qq --no-install-recommends "$@" fonts-dejavu-core >/dev/null
}
apt-get update -qq
# the shell is the same browser without windows, and a hundred megabytes smaller; not every release has it
install chromium-headless-shell 2>/dev/null || install chromium || echo "install_chromium: it cannot be had" >&2
exit 0
