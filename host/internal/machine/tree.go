package machine

import (
	"errors"
	"fmt"
	"path"
	"slices"
	"strings"

	"github.com/bowline-k8s/bowline/host"
)

// Names in a directory that WriteTree manages.
const (
	DataLink    = "..data"
	DataLinkTmp = "..data_tmp"
	// The name of a version's directory is this and six random digits, as in the kubelet, so
	// that a kubelet and Bowline can take over each other's trees.
	VersionLayout = "..2006_01_02_15_04_05."
)

// CheckTree refuses paths that leave the directory, that use the reserved names of versions, or
// that are both a file and a directory.
func CheckTree(tree host.Tree) error {
	for p := range tree {
		switch {
		case p == "":
			return errors.New("an empty path")
		case path.IsAbs(p):
			return fmt.Errorf("path %q is absolute", p)
		case strings.Contains(p, "\x00"):
			return fmt.Errorf("path %q contains a zero byte", p)
		case len(p) > 4095:
			return fmt.Errorf("path %q... is longer than 4095 bytes", p[:64])
		}
		elems := strings.Split(p, "/")
		for _, e := range elems {
			switch {
			case e == "" || e == ".":
				return fmt.Errorf("path %q has an empty element", p)
			case e == "..":
				return fmt.Errorf("path %q contains \"..\"", p)
			case len(e) > 255:
				return fmt.Errorf("path %q has an element longer than 255 bytes", p)
			}
		}
		if strings.HasPrefix(elems[0], "..") {
			return fmt.Errorf("path %q begins with \"..\", which is kept for versions", p)
		}
		for i := 1; i < len(elems); i++ {
			if above := strings.Join(elems[:i], "/"); has(tree, above) {
				return fmt.Errorf("path %q is a file and a directory", above)
			}
		}
	}
	return nil
}

func has(tree host.Tree, p string) bool { _, ok := tree[p]; return ok }

// IsVersion reports whether name is "..", then a digit, and a single path element.
func IsVersion(name string) bool {
	return len(name) > 2 && strings.HasPrefix(name, "..") && name[2] >= '0' && name[2] <= '9' && !strings.Contains(name, "/")
}

// IsDirOf reports whether dir is a directory of the tree.
func IsDirOf(tree host.Tree, dir string) bool {
	for p := range tree {
		if strings.HasPrefix(p, dir+"/") {
			return true
		}
	}
	return false
}

// FirstElements are the names in the directory itself.
func FirstElements(tree host.Tree) map[string]bool {
	names := map[string]bool{}
	for p := range tree {
		name, _, _ := strings.Cut(p, "/")
		names[name] = true
	}
	return names
}

// SortedPaths returns the paths of all files, sorted.
func SortedPaths(tree host.Tree) []string {
	paths := make([]string, 0, len(tree))
	for p := range tree {
		paths = append(paths, p)
	}
	slices.Sort(paths)
	return paths
}
