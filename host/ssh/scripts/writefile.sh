# writefile PATH DIR TEMPORARY MODE BYTES, content on standard input. It syncs the content
# before the rename, and the directory after it.
path=$1 tmp=$3
above "$2"
parents "$2" 027
umask 077
set -C
trap 'rm -f -- "$tmp"' EXIT
cat >"$tmp"
# If the link fails during the transfer, it looks like the end of the content.
[ "$(wc -c <"$tmp")" -eq "$5" ] || fail "the content was cut off"
chmod "$4" "$tmp"
sync -- "$tmp"
mv -fT -- "$tmp" "$path"
trap - EXIT
named "$2"
