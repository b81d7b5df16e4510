package ssh

import (
	"context"
	"crypto/rand"
	"crypto/sha256"
	"encoding/binary"
	"encoding/hex"
	"fmt"
	"path"
	"slices"
	"strings"
	"time"

	"github.com/bowline-k8s/bowline/host"
	"github.com/bowline-k8s/bowline/host/internal/machine"
	"github.com/bowline-k8s/bowline/host/ssh/shell"
)

// WriteTree keeps the layout that host/local describes. The whole tree travels in
// one request, as shell text whose printf commands write the files, so that a
// thousand files are no thousand processes. A writer of a request that we gave up
// may still run: the directory is locked on the machine as well.
func (h *Host) WriteTree(ctx context.Context, dir string, tree host.Tree) error {
	return run(h, ctx, "WriteTree", treeDeadline, func(ctx context.Context) error {
		if err := machine.Absolute("write tree", dir); err != nil {
			return err
		}
		if err := machine.CheckTree(tree); err != nil {
			return fmt.Errorf("write tree %s: %w", dir, err)
		}
		dir = path.Clean(dir)
		unlock, err := h.trees.Lock(ctx, dir)
		if err != nil {
			return err
		}
		defer unlock()
		about, content := h.treeAbout(tree), h.treeContent(tree)
		wait := int64(remaining(ctx) / time.Second)
		_, err = h.script(ctx, "write tree", dir, scriptWriteTree,
			[]string{dir, versionName(), itoa(int64(len(about))), itoa(int64(len(content))), itoa(wait)}, []byte(about+content))
		return err
	})
}

// versionName is unlike every other but by a chance of one to a million a second.
func versionName() string {
	var b [4]byte
	_, _ = rand.Read(b[:]) // never fails
	return fmt.Sprintf("%s%06d", time.Now().UTC().Format(machine.VersionLayout), binary.BigEndian.Uint32(b[:])%1_000_000)
}

// endMark ends a section of the request.
const endMark = "#end"

// wantOwner turns nil into root, where we could give a file to root at all.
func (h *Host) wantOwner(o *host.Owner) host.Owner {
	switch {
	case o != nil:
		return *o
	case h.found.asRoot:
		return host.Owner{}
	}
	return host.Owner{UID: -1, GID: -1}
}

// treeAbout is shell text that defines
//
//	files COMMAND...   runs COMMAND with the paths of all files
//	names COMMAND...   runs COMMAND with the first elements of the paths
//	states             prints modes, owners and sizes of the files
//	$states $digest    what states and sha256sum of all content shall print
//	$entries           files and directories, with the version's own
//	$links $count      what readlink shall print of names, and how many they are
func (h *Host) treeAbout(tree host.Tree) string {
	paths := machine.SortedPaths(tree)
	dirs, sum := map[string]bool{}, sha256.New()
	// stat prints a group of files for each kind of owner that is asked for.
	formats := [4]string{"%f - - %s", "%f %u - %s", "%f - %g %s", "%f %u %g %s"}
	var groups, states [4][]string
	for _, p := range paths {
		f := tree[p]
		sum.Write(f.Data)
		for d := path.Dir(p); d != "." && !dirs[d]; d = path.Dir(d) {
			dirs[d] = true
		}
		kind, uid, gid := 0, "-", "-"
		o := h.wantOwner(f.Owner)
		if o.UID >= 0 {
			kind, uid = kind|1, itoa(o.UID)
		}
		if o.GID >= 0 {
			kind, gid = kind|2, itoa(o.GID)
		}
		groups[kind] = append(groups[kind], p)
		states[kind] = append(states[kind], fmt.Sprintf("%x %s %s %d", 0o100000|uint32(f.Mode.Perm()), uid, gid, len(f.Data)))
	}
	names := machine.FirstElements(tree)
	sorted := make([]string, 0, len(names))
	for n := range names {
		sorted = append(sorted, n)
	}
	slices.Sort(sorted)
	links := make([]string, len(sorted))
	for i, n := range sorted {
		links[i] = machine.DataLink + "/" + n
	}
	var b strings.Builder
	b.WriteString("files() {\n\"$@\"" + words(paths) + "\n}\nnames() {\n\"$@\"" + words(sorted) + "\n}\nstates() {\n:\n")
	for kind, group := range groups {
		if len(group) > 0 {
			b.WriteString("printf '%s\\0'" + words(group) + " | xargs -0 stat -c '" + formats[kind] + "' --\n")
		}
	}
	each := "-n 1" // busybox's readlink takes one
	if h.found.findPrintf {
		each = ""
	}
	fmt.Fprintf(&b, "}\nstates=%s\ndigest='%s  -'\nentries=%d\nlinks=%s\ncount=%d\neach='%s'\n"+endMark,
		shell.Quote(strings.Join(slices.Concat(states[:]...), "\n")), hex.EncodeToString(sum.Sum(nil)),
		len(paths)+len(dirs)+1, shell.Quote(strings.Join(links, "\n")), len(sorted), each)
	return b.String()
}

// words are arguments of a command, each behind a blank.
func words(list []string) string {
	var b strings.Builder
	for _, w := range list {
		b.WriteString(" " + shell.Quote(w))
	}
	return b.String()
}

// treeContent is shell text that writes the tree into the current directory, which
// is empty; the umask is 077.
func (h *Host) treeContent(tree host.Tree) string {
	paths := machine.SortedPaths(tree)
	var b strings.Builder
	var dirs []string
	owners, modes := map[string][]string{}, map[string][]string{}
	for _, p := range paths {
		if d := path.Dir(p); d != "." && (len(dirs) == 0 || dirs[len(dirs)-1] != d) {
			dirs = append(dirs, d)
		}
		o := h.wantOwner(tree[p].Owner)
		if w := ownerWord(&o); w != "" {
			owners[w] = append(owners[w], p)
		}
		mode := octal(tree[p].Mode)
		modes[mode] = append(modes[mode], p)
	}
	batch := func(list []string, command string) {
		b.WriteString("printf '%s\\0'" + words(list) + " | xargs -0 " + command + " --\n")
	}
	b.WriteString("umask 022\nchmod 0755 .\n")
	if len(dirs) > 0 {
		batch(dirs, "mkdir -p")
	}
	b.WriteString("umask 077\n")
	for _, p := range paths {
		writeFileText(&b, p, tree[p].Data)
	}
	for _, o := range sortedKeys(owners) {
		batch(owners[o], "chown -h "+o)
	}
	for _, m := range sortedKeys(modes) { // after chown, which drops bits
		batch(modes[m], "chmod "+m)
	}
	b.WriteString(endMark)
	return b.String()
}

func sortedKeys(m map[string][]string) []string {
	keys := make([]string, 0, len(m))
	for k := range m {
		keys = append(keys, k)
	}
	slices.Sort(keys)
	return keys
}

// chunk is how much of a file one printf writes.
const chunk = 32 << 10

func writeFileText(b *strings.Builder, p string, data []byte) {
	if len(data) == 0 {
		b.WriteString(": >" + shell.Quote(p) + "\n")
		return
	}
	b.WriteString("{\n")
	for part := range slices.Chunk(data, chunk) {
		b.WriteString("printf '")
		escape(b, part)
		b.WriteString("'\n")
	}
	b.WriteString("} >" + shell.Quote(p) + "\n")
}

// escape writes data as a format of printf between single quotes.
func escape(b *strings.Builder, data []byte) {
	for i, c := range data {
		switch {
		case c == '%':
			b.WriteString("%%")
		case c == '\\':
			b.WriteString(`\\`)
		case c == '\n' || c >= ' ' && c < 0x7f && c != '\'' && (c != '-' || i > 0): // a first - is an option
			b.WriteByte(c)
		default:
			b.WriteString(`\` + string([]byte{'0' + c>>6, '0' + c>>3&7, '0' + c&7}))
		}
	}
}
