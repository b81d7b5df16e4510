# writefile PATH DIR TEMPORARY MODE BYTES, content on standard input. The content is on
# the disk before it has the name, and the name when this ends.
path=$1 tmp=$3
above "$2"
parents "$2" 027
umask 077
set -C
trap 'rm -f -- "$tmp"' EXIT
cat >"$tmp"
# A link that fails under us looks like the end of the content.
[ "$(wc -c <"$tmp")" -eq "$5" ] || fail "the content was cut off"
chmod "$4" "$tmp"
sync -- "$tmp"
mv -fT -- "$tmp" "$path"
trap - EXIT
named "$2"
