#!/bin/sh
# Unpack one Debian package under DEST, beside what is installed; /etc and dpkg stay untouched.
# usage: fetch_debian.sh DEST SUITE COMPONENT PACKAGE
set -eu
mkdir -p "$1"
dest=$(cd "$1" && pwd)
suite=$2
component=$3
package=$4
work=$(mktemp -d)
trap 'rm -rf "$work"' EXIT
mkdir -p "$work/lists/partial" "$work/archives/partial"
: > "$work/status"

# The archive this machine already uses, asked for another suite or component.
uri=$(awk '/^URIs:/ { print $2; exit }' /etc/apt/sources.list.d/debian.sources)
keyring=/usr/share/keyrings/debian-archive-keyring.gpg
echo "deb [signed-by=$keyring] $uri $suite $component" > "$work/sources.list"

apt() {
  apt-get -qq \
    -o Dir::Etc::sourcelist="$work/sources.list" -o Dir::Etc::sourceparts=- \
    -o Dir::State::lists="$work/lists" -o Dir::State::status="$work/status" \
    -o Dir::Cache="$work" -o APT::Sandbox::User=root \
    -o Acquire::Retries=0 -o Acquire::http::Timeout=15 "$@"
}
apt update
(cd "$work" && apt download "$package")
dpkg-deb -x "$work/${package}"_*.deb "$dest"
