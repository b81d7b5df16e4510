#!/usr/bin/env bash
# Builds Kubernetes' e2e suites and the images that they need, from the Kubernetes version of the lab
# and from Debian packages. The script pulls no image.
#
#   hack/conformance-build.sh
#
# The suites are e2e.test and e2e_node.test in $BOWLINE_CACHE/conformance. The images are directories
# for "bowline-lab load-image", in $BOWLINE_CACHE/conformance/images/REPOSITORY:TAG. repositories.yaml
# beside them maps the image names of the suites to these images.
set -euo pipefail
cd "$(dirname "$0")/.."
[ "$(id -u)" = 0 ] || { echo "hack/conformance-build.sh: run it as root: it sets the owners of the images' files" >&2; exit 1; }

out=${BOWLINE_CACHE:-/var/cache/bowline}/conformance
images=$out/images
programs=$out/programs
kubernetes=k8s.io/kubernetes/test
mkdir -p "$out" "$images" "$programs"
export CGO_ENABLED=0

stamp=$( (cat lab/conformance/go.mod "${BASH_SOURCE[0]}"; go env GOVERSION GOARCH) | sha256sum | cut -d' ' -f1)
if [ "$(cat "$out/stamp" 2>/dev/null)" = "$stamp" ]; then
  echo "the suite and its images are in $out"
  exit
fi

# program NAME PACKAGE
program() { go -C lab/conformance build -trimpath -buildvcs=false -ldflags '-s -w' -o "$programs/$1" "$kubernetes/$2"; }

# The suites choose fixtures by their own version, which only the linker sets.
version=$(go -C lab/conformance list -m -f '{{.Version}}' k8s.io/kubernetes)
component=k8s.io/component-base/version
flags="-s -w -X $component.gitVersion=$version -X $component.gitMajor=$(cut -d. -f1 <<<"${version#v}") -X $component.gitMinor=$(cut -d. -f2 <<<"$version")"
echo "building the e2e suites (some minutes)"
go -C lab/conformance test -c -trimpath -ldflags "$flags" -o "$out/e2e.test" $kubernetes/e2e
go -C lab/conformance test -c -trimpath -ldflags "$flags" -o "$out/e2e_node.test" $kubernetes/e2e_node
go -C lab/conformance build -trimpath -buildvcs=false -ldflags '-s -w' -o "$programs/ginkgo" github.com/onsi/ginkgo/v2/ginkgo
ln -sf "${BOWLINE_CACHE:-/var/cache/bowline}/bin/bowline-kube" "$programs/kubectl"
echo "building the programs of its images"
program agnhost images/agnhost
program nnp images/nonewprivs
program regression-issue-74839 images/regression-issue-74839
program consumer images/resource-consumer
program consume-cpu images/resource-consumer/consume-cpu
go -C lab/conformance build -trimpath -buildvcs=false -ldflags '-s -w' -o "$programs/sample-apiserver" k8s.io/sample-apiserver
go -C lab/conformance build -trimpath -buildvcs=false -ldflags '-s -w' -o "$programs/etcd" go.etcd.io/etcd/server/v3
CGO_ENABLED=0 go -C lab build -trimpath -buildvcs=false -ldflags '-s -w' -o "$programs/pause" ./images/pause

# Debian's programs, without its package manager: the archives of a package and of its dependencies
# are unpacked, and none of their scripts runs.
archives=$out/archives
mkdir -p "$archives/partial"
: >"$out/no-packages"
fetch() {
  apt-get -qq -y --no-install-recommends --download-only -o Dir::State::status="$out/no-packages" \
    -o Dir::Cache::archives="$archives" -o APT::Sandbox::User=root install "$@" >/dev/null
}
# closure PACKAGE...: prints the files of the archives, one a line.
closure() {
  apt-get -qq -y --no-install-recommends --print-uris -o Dir::State::status="$out/no-packages" \
    -o Dir::Cache::archives=/nonexistent install "$@" | awk '/^'"'"'/ {print $2}'
}
apt-get update -qq
command -v gcc make >/dev/null || DEBIAN_FRONTEND=noninteractive apt-get install -y -qq --no-install-recommends gcc libc6-dev make bzip2 >/dev/null

# root DIR [PACKAGE...]: makes a root file system with busybox and these packages.
root() {
  local dir=$1 file; shift
  rm -rf "$dir"
  mkdir -p "$dir"/{usr/bin,usr/sbin,usr/lib,usr/lib64,etc,home,root,tmp,var/tmp,proc,sys,dev,run}
  chmod 1777 "$dir/tmp" "$dir/var/tmp"
  for file in bin sbin lib lib64; do ln -s "usr/$file" "$dir/$file"; done
  printf '%s\n' 'root:x:0:0:root:/root:/bin/sh' 'daemon:x:1:1:daemon:/usr/sbin:/bin/false' \
    'www-data:x:33:33:www-data:/var/www:/bin/false' 'nobody:x:65534:65534:nobody:/home:/bin/false' >"$dir/etc/passwd"
  printf '%s\n' 'root:x:0:' 'daemon:x:1:' 'www-data:x:33:' 'nogroup:x:65534:' >"$dir/etc/group"
  [ $# = 0 ] || fetch "$@"
  [ $# = 0 ] || while read -r file; do
    dpkg-deb --fsys-tarfile "$archives/$file" | tar -x -C "$dir" --keep-directory-symlink --exclude='./usr/share/doc' \
      --exclude='./usr/share/man' --exclude='./usr/share/locale' --exclude='./etc/passwd' --exclude='./etc/group'
  done < <(closure "$@")
  cp "$programs/busybox" "$dir/usr/bin/busybox"
  # A package's program takes precedence over busybox's of that name.
  "$dir/bin/busybox" --list | while read -r file; do
    [ -e "$dir/usr/bin/$file" ] || [ -e "$dir/usr/sbin/$file" ] || ln -s busybox "$dir/usr/bin/$file"
  done
}

# image REPOSITORY:TAG JSON: makes that image from the tree that root made in $tree.
image() {
  mkdir -p "$images/$(dirname "$1")"
  rm -rf "${images:?}/$1"
  mkdir "$images/$1"
  cp -a "$tree" "$images/$1/rootfs"
  printf '%s\n' "$2" >"$images/$1/image.json"
  echo "  $1"
}
# version IMAGE: prints the tag that the suite asks for.
version() { sed -n "s/^[[:space:]]*configs\[$1\] *= Config{[^\"]*\"\(.*\)\"}/\1/p" "$manifest" | sed "s/.*\", \"//"; }
manifest=$(go -C lab/conformance list -f '{{.Dir}}' $kubernetes/utils/image)/manifest.go
source=$(go -C lab/conformance list -m -f '{{.Dir}}' k8s.io/kubernetes)/test/images
tree=$out/tree
path='"Env":["PATH=/usr/local/sbin:/usr/local/bin:/usr/sbin:/usr/bin:/sbin:/bin"]'

# Debian's busybox is patched so that its sh does not export variables such as data-1, which the
# suite looks for, and its sh prefers its own applets to the programs in PATH, so that a script never
# calls the nc of another package. So it is built from Debian's source without the patches and without
# that preference.
busybox() {
  local at=$out/busybox file
  rm -rf "$at"
  mkdir -p "$at"/{sources,lists/partial,cache,state}
  for file in /etc/apt/sources.list /etc/apt/sources.list.d/*.{list,sources}; do
    [ -e "$file" ] && sed 's/^Types:.*/Types: deb-src/; s/^deb /deb-src /' "$file" >"$at/sources/$(basename "$file")"
  done
  local apt=(-qq -o Dir::Etc::SourceList=/dev/null -o Dir::Etc::SourceParts="$at/sources" -o Dir::State::Lists="$at/lists"
    -o Dir::Cache="$at/cache" -o APT::Sandbox::User=root)
  apt-get "${apt[@]}" update
  (
    cd "$at"
    apt-get "${apt[@]}" --download-only source busybox >/dev/null
    mkdir src
    tar -x -C src --strip-components=1 -f busybox_*.orig.tar.*
    tar -x -C src -f busybox_*.debian.tar.*
    cd src
    sed 's/^CONFIG_FEATURE_\(PREFER_APPLETS\|SH_STANDALONE\|SH_NOFORK\)=y/# CONFIG_FEATURE_\1 is not set/' debian/config/pkg/static >.config
    yes '' | make -s oldconfig >/dev/null 2>&1 || true
    make -s -j"$(nproc)" busybox >build.log 2>&1 || { tail build.log >&2; exit 1; }
    env -i data-1=there ./busybox sh -c env | grep -q data-1=there || { echo "the sh of this busybox drops variables: its patches have changed" >&2; exit 1; }
    mkdir path
    printf '#!/bin/sh\necho found\n' >path/nc
    chmod +x path/nc
    [ "$(PATH=$PWD/path ./busybox sh -c nc)" = found ] || { echo "the sh of this busybox prefers its applets: its configuration has changed" >&2; exit 1; }
  )
  cp "$at/src/busybox" "$programs/busybox"
  rm -rf "$at"
}
echo "building busybox"
busybox

echo "making images"
root "$tree"
image "e2e-test-images/busybox:$(version BusyBox)" "{$path,\"Cmd\":[\"sh\"]}"
image "e2e-test-images/nonroot:$(version NonRoot)" "{$path,\"Cmd\":[\"sh\"],\"User\":\"1234\"}"
mkdir -p "$tree/usr/local/bin"
cp "$programs/nnp" "$tree/usr/local/bin/nnp"
chmod 4755 "$tree/usr/local/bin/nnp"
image "e2e-test-images/nonewprivs:$(version Nonewprivs)" "{$path,\"Cmd\":[\"nnp\"]}"
rm "$tree/usr/local/bin/nnp"
cp "$programs/regression-issue-74839" "$tree/"
image "e2e-test-images/regression-issue-74839:$(version RegressionIssue74839)" "{$path,\"Entrypoint\":[\"/regression-issue-74839\"]}"
rm "$tree/regression-issue-74839"

root "$tree" stress
cp "$programs/consumer" "$programs/consume-cpu" "$tree/"
image "e2e-test-images/resource-consumer:$(version ResourceConsumer)" "{$path,\"Entrypoint\":[\"/consumer\"],\"ExposedPorts\":{\"8080/tcp\":{}}}"

root "$tree" perl-base
image "e2e-test-images/perl:$(version Perl)" "{$path,\"Cmd\":[\"perl\"]}"

root "$tree" util-linux
image "e2e-test-images/ipc-utils:$(version IpcUtils)" "{$path,\"Cmd\":[\"sh\"]}"

# libc-bin has getent.
root "$tree" bash bind9-dnsutils hostname libc-bin
image "e2e-test-images/glibc-dns-testing:$(version GlibcDnsTesting)" "{$path,\"Cmd\":[\"bash\"]}"

root "$tree" nginx-light
cat >"$tree/etc/nginx/nginx.conf" <<'N'
user www-data;
error_log /dev/stderr;
events {}
http {
  include mime.types;
  access_log /dev/stdout;
  server { listen 80; root /usr/share/nginx/html; }
}
N
for name in Nginx NginxNew; do
  image "e2e-test-images/nginx:$(version $name)" "{$path,\"Cmd\":[\"nginx\",\"-g\",\"daemon off;\"],\"ExposedPorts\":{\"80/tcp\":{}}}"
done

# agnhost is a program with many tools around it, and its own small registry with an image.
root "$tree" bash bind9-dnsutils curl iperf iproute2 libc-bin netcat-openbsd socat util-linux
# A script of the package, which did not run, would have made this link; specs run nc -v, which
# busybox's nc does not know.
ln -sf nc.openbsd "$tree/usr/bin/nc"
cp "$programs/agnhost" "$tree/agnhost"
ln -s agnhost "$tree/agnhost-2"
cp "$source/agnhost/porter/localhost.crt" "$source/agnhost/porter/localhost.key" "$tree/"
chmod u+w "$tree"/localhost.*
mkdir "$tree/uploads"
echo 'user-defined-in-image:x:1000:1000::/home/user-defined-in-image:/bin/sh' >>"$tree/etc/passwd"
printf '%s\n' 'user-defined-in-image:x:1000:' 'group-defined-in-image:x:50000:user-defined-in-image' >>"$tree/etc/group"
# blob DIR: stores standard input there under its digest, and prints the digest and the size.
blob() {
  local data digest
  data=$(mktemp)
  cat >"$data"
  digest=$(sha256sum <"$data" | cut -d' ' -f1)
  mkdir -p "$1/sha256/${digest:0:2}/$digest"
  printf '"digest":"sha256:%s","size":%d' "$digest" "$(stat -c %s "$data")"
  mv "$data" "$1/sha256/${digest:0:2}/$digest/data"
  chmod 644 "$1/sha256/${digest:0:2}/$digest/data"
}
while read -r name _ tag; do
  [ "$name" = pause ] || { echo "the registry of agnhost must hold $name, which this script does not build" >&2; exit 1; }
  at=$tree/var/registry/$name
  mkdir -p "$at/manifests"
  layer=$(tar -c -C "$programs" --owner=0 --group=0 --mtime=@0 pause | gzip -n | blob "$at/blobs")
  diff=$(tar -c -C "$programs" --owner=0 --group=0 --mtime=@0 pause | sha256sum | cut -d' ' -f1)
  arch=$(go env GOARCH)
  config=$(printf '{"architecture":"%s","os":"linux","config":{"Entrypoint":["/pause"]},"rootfs":{"type":"layers","diff_ids":["sha256:%s"]}}' "$arch" "$diff" | blob "$at/blobs")
  one=$(printf '{"schemaVersion":2,"mediaType":"application/vnd.docker.distribution.manifest.v2+json","config":{"mediaType":"application/vnd.docker.container.image.v1+json",%s},"layers":[{"mediaType":"application/vnd.docker.image.rootfs.diff.tar.gzip",%s}]}' "$config" "$layer" | blob "$at/manifests")
  list=$(printf '{"schemaVersion":2,"mediaType":"application/vnd.docker.distribution.manifest.list.v2+json","manifests":[{"mediaType":"application/vnd.docker.distribution.manifest.v2+json",%s,"platform":{"architecture":"%s","os":"linux"}}]}' "$one" "$arch" | blob "$at/manifests")
  sed 's/.*"digest":"\([^"]*\)".*/\1/' <<<"$list" >"$at/manifests/$tag"
done < <(grep -v '^#' "$source/agnhost/fakeregistryserver/images.txt")
config="{$path,\"Entrypoint\":[\"/agnhost\"],\"Cmd\":[\"pause\"],\"ExposedPorts\":{\"80/tcp\":{},\"8080/tcp\":{},\"8081/tcp\":{},\"9376/tcp\":{},\"5000/tcp\":{}}}"
image "e2e-test-images/agnhost:$(version Agnhost)" "$config"
image "e2e-test-images/agnhost:$(version AgnhostPrev)" "$config"
# A spec of image volumes reads this of the kitten.
rm "$tree/etc/os-release"
echo 'NAME="Alpine Linux"' >"$tree/etc/os-release"
for name in Nautilus Kitten; do
  cp "$source/${name,}/html/"* "$tree/"
  image "e2e-test-images/${name,}:$(version $name)" "$(sed 's/"pause"/"test-webserver"/' <<<"$config")"
  rm "$tree/${name,}.jpg" "$tree/data.json"
done

rm -rf "$tree"
root "$tree"
cp "$programs/sample-apiserver" "$tree/sample-apiserver"
image "e2e-test-images/sample-apiserver:$(version APIServer)" '{"Entrypoint":["/sample-apiserver"]}'
rm "$tree/sample-apiserver"
mkdir -p "$tree/usr/local/bin"
cp "$programs/etcd" "$tree/usr/local/bin/etcd"
image "etcd:$(version Etcd)" "{$path,\"Cmd\":[\"etcd\"]}"
rm "$tree/usr/local/bin/etcd"
cp "$programs/pause" "$tree/pause"
image "pause:$(version Pause)" '{"Entrypoint":["/pause"],"User":"65535:65535"}'
rm -rf "$tree"

# The registries by the suite's names. The lab's registry has only the images that this script makes.
cat >"$out/repositories.yaml" <<'Y'
promoterE2eRegistry: registry.lab/e2e-test-images
buildImageRegistry: registry.lab/build-image
invalidRegistry: invalid.registry.lab/invalid
gcEtcdRegistry: registry.lab
gcRegistry: registry.lab
sigStorageRegistry: registry.lab/sig-storage
privateRegistry: registry.lab/authenticated
dockerLibraryRegistry: registry.lab/library
cloudProviderGcpRegistry: registry.lab/cloud-provider-gcp
Y
echo "$stamp" >"$out/stamp"
echo "the suite and its images are in $out"
