# diskusage DIR...: prints one line for each directory: KiB and inodes. Files that are
# removed meanwhile do not count. A missing directory has 0 of both.
set +e
for dir; do
	if [ ! -d "$dir" ] || [ -L "$dir" ]; then
		echo 0 0
		continue
	fi
	bytes=$(du -skx -- "$dir" 2>/dev/null)
	inodes=$(du -sx --inodes -- "$dir" 2>/dev/null) || inodes=$(find "$dir" -xdev -exec stat -c %i -- {} + 2>/dev/null | sort -u | wc -l)
	tab='	'
	bytes=${bytes%%"$tab"*} inodes=${inodes%%"$tab"*}
	echo "${bytes:-0} ${inodes:-0}"
done
exit 0
