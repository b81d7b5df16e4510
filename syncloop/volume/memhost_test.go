package volume

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"io/fs"
	"maps"
	"path"
	"slices"
	"sort"
	"strings"
	"sync"

	"github.com/bowline-k8s/bowline/host"
)

// memHost is a fake host in memory, with directories, files, links, mounts and trees, that records
// the calls.
type memHost struct {
	Host  // methods that are not defined below must not be called
	mu    sync.Mutex
	nodes map[string]*node
	// mounts are by target; what lies beneath a mount is hidden until the unmount.
	mounts map[string]*mounted
	calls  []string
	fail   map[string]error // by method
	busy   map[string]bool  // targets that cannot be unmounted
	fails  map[string]error // what Unmount returns, by target
	// unmounted are the targets in order.
	unmounted []string
	// run answers Run, without the lock; nil: nothing may be run.
	run func(args []string) host.Result
	// before is called ahead of each call, without the lock.
	before func(method, path string)
}

type node struct {
	mode   fs.FileMode
	data   []byte
	target string
	tree   host.Tree
	gid    int64
	ro     bool
}

type mounted struct {
	host.Mount
	hidden map[string]*node
}

func newMemHost() *memHost {
	h := &memHost{nodes: map[string]*node{}, mounts: map[string]*mounted{}, fail: map[string]error{}, busy: map[string]bool{}}
	h.nodes["/"] = &node{mode: fs.ModeDir | 0o755}
	return h
}

// enter begins a call; the caller unlocks.
func (h *memHost) enter(method, p string) error {
	if h.before != nil {
		h.before(method, p)
	}
	h.mu.Lock()
	h.calls = append(h.calls, method+" "+p)
	return h.fail[method]
}

// put adds a node with its parents.
func (h *memHost) put(p string, n node) {
	if dir := path.Dir(p); h.nodes[dir] == nil {
		h.mkdirs(dir, 0o755)
	}
	h.nodes[p] = &n
}

func (h *memHost) mkdirs(p string, mode fs.FileMode) {
	for d := p; d != "/" && h.nodes[d] == nil; d = path.Dir(d) {
		h.nodes[d] = &node{mode: fs.ModeDir | 0o750}
	}
	if n := h.nodes[p]; n.mode.IsDir() {
		n.mode = fs.ModeDir | mode
	}
}

func (h *memHost) Stat(_ context.Context, p string) (host.FileInfo, error) {
	err := h.enter("Stat", p)
	defer h.mu.Unlock()
	if err != nil {
		return host.FileInfo{}, err
	}
	n := h.nodes[path.Clean(p)]
	if n == nil {
		return host.FileInfo{}, &fs.PathError{Op: "stat", Path: p, Err: fs.ErrNotExist}
	}
	return host.FileInfo{Name: path.Base(p), Mode: n.mode, Target: n.target, GID: n.gid}, nil
}

func (h *memHost) List(_ context.Context, dir string) ([]host.FileInfo, error) {
	err := h.enter("List", dir)
	defer h.mu.Unlock()
	if err != nil {
		return nil, err
	}
	if h.nodes[dir] == nil {
		return nil, &fs.PathError{Op: "list", Path: dir, Err: fs.ErrNotExist}
	}
	var list []host.FileInfo
	for p, n := range h.nodes {
		if p != "/" && path.Dir(p) == dir {
			list = append(list, host.FileInfo{Name: path.Base(p), Mode: n.mode, Target: n.target})
		}
	}
	sort.Slice(list, func(i, j int) bool { return list[i].Name < list[j].Name })
	return list, nil
}

func (h *memHost) MkdirAll(_ context.Context, p string, mode fs.FileMode, _ *host.Owner) error {
	err := h.enter("MkdirAll", p)
	defer h.mu.Unlock()
	if err != nil {
		return err
	}
	h.mkdirs(p, mode)
	return nil
}

func (h *memHost) WriteFile(_ context.Context, p string, data []byte, mode fs.FileMode) error {
	err := h.enter("WriteFile", p)
	defer h.mu.Unlock()
	if err != nil {
		return err
	}
	h.mkdirs(path.Dir(p), 0o750)
	h.nodes[p] = &node{mode: mode, data: data}
	return nil
}

func (h *memHost) ReadFile(_ context.Context, p string, _ int64) ([]byte, error) {
	err := h.enter("ReadFile", p)
	defer h.mu.Unlock()
	if err != nil {
		return nil, err
	}
	if n := h.nodes[p]; n != nil {
		return n.data, nil
	}
	return nil, &fs.PathError{Op: "open", Path: p, Err: fs.ErrNotExist}
}

func (h *memHost) Make(_ context.Context, things ...host.Entry) ([]bool, error) {
	words := make([]string, len(things))
	for i, t := range things {
		words[i] = t.Path
	}
	err := h.enter("Make", strings.Join(words, " "))
	defer h.mu.Unlock()
	if err != nil {
		return nil, err
	}
	made := make([]bool, len(things))
	for i, t := range things {
		made[i] = h.nodes[t.Path] == nil
		if t.Mode.IsDir() {
			h.mkdirs(t.Path, t.Mode.Perm())
			continue
		}
		h.mkdirs(path.Dir(t.Path), 0o750)
		h.nodes[t.Path] = &node{mode: t.Mode, data: t.Data}
	}
	return made, nil
}

func (h *memHost) WriteTree(_ context.Context, dir string, tree host.Tree) error {
	err := h.enter("WriteTree", dir)
	defer h.mu.Unlock()
	if err != nil {
		return err
	}
	if h.nodes[dir] == nil {
		h.mkdirs(dir, 0o755)
	}
	h.nodes[dir].tree = maps.Clone(tree)
	return nil
}

func (h *memHost) ChownGroup(_ context.Context, p string, gid int64, readOnly bool) error {
	err := h.enter("ChownGroup", p)
	defer h.mu.Unlock()
	if err != nil {
		return err
	}
	n := h.nodes[p]
	n.gid, n.ro = gid, readOnly
	n.mode |= fs.ModeSetgid
	return nil
}

func (h *memHost) Mount(_ context.Context, m host.Mount) error {
	err := h.enter("Mount", m.Target)
	defer h.mu.Unlock()
	if err != nil {
		return err
	}
	if h.mounts[m.Target] != nil {
		return errors.New("mounted twice: " + m.Target)
	}
	h.mkdirs(m.Target, 0o755)
	hidden := map[string]*node{}
	for p, n := range h.nodes {
		if p == m.Target || strings.HasPrefix(p, m.Target+"/") {
			hidden[p] = n
			delete(h.nodes, p)
		}
	}
	h.nodes[m.Target] = &node{mode: fs.ModeDir | fs.ModeSticky | 0o777}
	h.mounts[m.Target] = &mounted{Mount: m, hidden: hidden}
	return nil
}

func (h *memHost) Unmount(_ context.Context, target string) error {
	err := h.enter("Unmount", target)
	defer h.mu.Unlock()
	if err != nil {
		return err
	}
	if err := h.fails[target]; err != nil {
		return err
	}
	if h.busy[target] {
		return errors.New("device or resource busy")
	}
	if list := h.targets(target); h.mounts[target] != nil && len(list) > 1 {
		return fmt.Errorf("unmount %s: %s: %w", target, list[0], host.ErrMountInside)
	}
	h.unmounted = append(h.unmounted, target)
	h.drop(target)
	return nil
}

func (h *memHost) drop(target string) {
	m := h.mounts[target]
	if m == nil {
		return
	}
	for p := range h.nodes {
		if p == target || strings.HasPrefix(p, target+"/") {
			delete(h.nodes, p)
		}
	}
	maps.Copy(h.nodes, m.hidden)
	delete(h.mounts, target)
}

// reboot loses all mounts.
func (h *memHost) reboot() {
	h.mu.Lock()
	defer h.mu.Unlock()
	for _, target := range h.targets("/") {
		h.drop(target)
	}
}

// targets returns the mount points at and below dir, deepest first; the caller holds mu.
func (h *memHost) targets(dir string) []string {
	var list []string
	for t := range h.mounts {
		if dir == "/" || t == dir || strings.HasPrefix(t, dir+"/") {
			list = append(list, t)
		}
	}
	slices.SortFunc(list, func(a, b string) int { return len(b) - len(a) })
	return list
}

func (h *memHost) ListMounts(_ context.Context, dir string) ([]host.Mount, error) {
	err := h.enter("ListMounts", dir)
	defer h.mu.Unlock()
	if err != nil {
		return nil, err
	}
	var list []host.Mount
	for _, t := range h.targets(dir) {
		list = append(list, h.mounts[t].Mount)
	}
	return list, nil
}

func (h *memHost) RemoveTree(_ context.Context, p string, unmount ...string) error {
	err := h.enter("RemoveTree", p)
	defer h.mu.Unlock()
	if err != nil {
		return err
	}
	for _, target := range unmount {
		if h.fails[target] == nil && !h.busy[target] && len(h.targets(target)) == 1 {
			h.unmounted = append(h.unmounted, target)
			h.drop(target)
		}
	}
	if len(h.targets(p)) > 0 {
		return host.ErrMountInside
	}
	for q := range h.nodes {
		if q == p || strings.HasPrefix(q, p+"/") {
			delete(h.nodes, q)
		}
	}
	return nil
}

// BindSubPath ignores links; host/hosttest tests those.
func (h *memHost) BindSubPath(_ context.Context, s host.SubPath) error {
	err := h.enter("BindSubPath", s.Target)
	defer h.mu.Unlock()
	if err != nil {
		return err
	}
	if err := s.Check(); err != nil {
		return err
	}
	h.drop(s.Target)
	h.mkdirs(s.Target, 0o750)
	h.mounts[s.Target] = &mounted{Mount: host.Mount{Source: path.Join(s.Root, s.Path), Target: s.Target, Type: "bind"}}
	return nil
}

// count returns the number of calls of a method.
func (h *memHost) count(method string) int {
	h.mu.Lock()
	defer h.mu.Unlock()
	n := 0
	for _, c := range h.calls {
		if strings.HasPrefix(c, method+" ") {
			n++
		}
	}
	return n
}

func (h *memHost) forgetCalls() { h.mu.Lock(); h.calls = nil; h.mu.Unlock() }

// onDisk returns where the bytes are on the disk, not counting mounts.
func (h *memHost) onDisk(secret string) []string {
	h.mu.Lock()
	defer h.mu.Unlock()
	var found []string
	look := func(p string, n *node) {
		if bytes.Contains(n.data, []byte(secret)) {
			found = append(found, p)
		}
		for name, f := range n.tree {
			if bytes.Contains(f.Data, []byte(secret)) {
				found = append(found, path.Join(p, name))
			}
		}
	}
	for p, n := range h.nodes {
		inMount := slices.ContainsFunc(h.targets("/"), func(t string) bool { return p == t || strings.HasPrefix(p, t+"/") })
		if !inMount {
			look(p, n)
		}
	}
	for _, m := range h.mounts {
		for p, n := range m.hidden {
			look(p, n)
		}
	}
	return found
}

func (h *memHost) Run(_ context.Context, c host.Command) (host.Result, error) {
	err := h.enter("Run", strings.Join(c.Args, " "))
	h.mu.Unlock()
	if err != nil || h.run == nil {
		return host.Result{}, errors.Join(err, fmt.Errorf("%s cannot be run", c.Args[0]))
	}
	return h.run(c.Args), nil
}
