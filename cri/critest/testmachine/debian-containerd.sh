#!/bin/sh
# Unpacks Debian's containerd (1.6 on Debian 12) into DIR and prints the directory
# of its binaries, for BOWLINE_TEST_CONTAINERD. It is never installed: the package
# would start a service.
set -eu
dir=${1:?usage: debian-containerd.sh DIR}
if [ ! -x "$dir/usr/bin/containerd" ]; then
	mkdir -p "$dir"
	cd "$dir"
	apt-get download -qq containerd >&2 || {
		echo "debian-containerd.sh: apt-get could not download containerd; run apt-get update and try again" >&2
		exit 1
	}
	dpkg-deb -x containerd_*.deb .
	rm -f containerd_*.deb
fi
echo "$dir/usr/bin"
