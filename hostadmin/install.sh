set -euf
umask 077
IFS= read -r line
dir=$HOME/.ssh
file=$dir/authorized_keys
[ -d "$dir" ] || mkdir "$dir"
[ -e "$file" ] || : >"$file"
chmod go-w "$dir" "$file"
key=
for word in $line; do
	case $word in AAAA*) key=$word ;; esac
done
if grep -v '^[[:space:]]*#' "$file" | grep -qF -- "$key"; then
	echo 'bowline: there'
	exit 0
fi
[ ! -s "$file" ] || [ -z "$(tail -c 1 "$file")" ] || echo >>"$file"
printf '%s\n' "$line" >>"$file"
echo 'bowline: added'
