# probe ROOT TOOL...: prints the missing tools and the features of the others, then the mounts of
# control groups as in mountinfo, without the numbers and the root. It leaves out those of
# pods, which are below ROOT/pods.
set +e
root=$1
shift
for tool; do
	command -v "$tool" >/dev/null || echo "missing $tool"
done
case $(command -v printf) in
*/*) echo "missing printf (as a builtin of the shell)" ;;
esac
find / -maxdepth 0 -printf '' 2>/dev/null && echo "can find-printf"
rm --help 2>&1 | grep -q one-file-system && echo "can rm-one-file-system"
mv --help 2>&1 | grep -q -e '-[a-z]*T' || echo "missing mv -T"
if unshare -m --propagation private true 2>/dev/null; then
	echo "can unshare-propagation"
elif unshare -m true 2>/dev/null; then
	echo "can unshare"
fi
case $(date +%N) in
[0-9]*) echo "can date-nanoseconds" ;;
esac
echo "uid $(id -u)"
echo mounts
real "${root%/}/pods"
pattern
cut -d ' ' -f 5- /proc/self/mountinfo | sed -n -e "\\,^$pattern[ /],d" -e '\,^/sys/fs/cgroup ,b print' \
	-e '/ - cgroup /b print' -e '/ - cgroup2 /b print' -e d -e ': print' -e 's/^/0 0 0:0 \/ /p'
# Without sed or cut the answer names them.
exit 0
