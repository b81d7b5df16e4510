# probe TOOL...: prints the missing tools and the features of the others, then the mounts.
set +e
for tool; do
	command -v "$tool" >/dev/null || echo "missing $tool"
done
case $(command -v printf) in
*/*) echo "missing printf (as a builtin of the shell)" ;;
esac
find / -maxdepth 0 -printf '' 2>/dev/null && echo "can find-printf"
rm --help 2>&1 | grep -q one-file-system && echo "can rm-one-file-system"
mv --help 2>&1 | grep -q -e '-[a-z]*T' || echo "missing mv -T"
case $(date +%N) in
[0-9]*) echo "can date-nanoseconds" ;;
esac
echo "uid $(id -u)"
echo mounts
cat /proc/self/mountinfo
