# listcgroups DIR...: the names of the directories in them, each with a NUL.
for dir; do
	for child in "$dir"/*/ "$dir"/.[!.]*/; do
		[ -d "$child" ] || continue
		child=${child%/}
		printf '%s\0' "${child##*/}"
	done
done
