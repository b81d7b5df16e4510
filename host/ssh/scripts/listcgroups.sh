# listcgroups PATH HIERARCHY...: prints the names of the directories in PATH of all
# hierarchies, each once and with a NUL. The hierarchies of version 1 have mostly the same
# names.
path=$1
shift
for root; do
	for child in "$root$path"/*/ "$root$path"/.[!.]*/; do
		[ -d "$child" ] || continue
		child=${child%/}
		name=${child##*/}
		for other; do
			if [ "$other" = "$root" ]; then
				printf '%s\0' "$name"
				break
			fi
			[ ! -d "$other$path/$name" ] || break
		done
	done
done
