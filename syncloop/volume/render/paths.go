package render

import (
	"fmt"
	"path"
	"sort"
	"strings"
)

// Limits of one path: Linux's PATH_MAX and NAME_MAX.
const (
	maxPathLength = 4096
	maxNameLength = 255
)

// cleanPaths checks every path and cleans it. The error says which path is invalid.
func cleanPaths(t Tree) (Tree, error) {
	clean := make(Tree, len(t))
	names := make([]string, 0, len(t))
	for name := range t {
		names = append(names, name)
	}
	sort.Strings(names) // so that the same fault is reported each time
	for _, name := range names {
		if err := CheckPath(name); err != nil {
			return nil, err
		}
		clean[path.Clean(name)] = t[name]
	}
	for _, name := range names {
		for dir := path.Dir(path.Clean(name)); dir != "."; dir = path.Dir(dir) {
			if _, ok := clean[dir]; ok {
				return nil, fmt.Errorf("conflicting paths: %q is a file and %q is below it", dir, path.Clean(name))
			}
		}
	}
	return clean, nil
}

// CheckPath refuses a path that could leave the volume, or that could collide with the names of the
// atomic layout, which begin with "..".
func CheckPath(p string) error {
	if p == "" {
		return fmt.Errorf("invalid path: must not be empty: %q", p)
	}
	if path.IsAbs(p) {
		return fmt.Errorf("invalid path: must be relative path: %s", p)
	}
	if len(p) > maxPathLength {
		return fmt.Errorf("invalid path: must be less than or equal to %d characters", maxPathLength)
	}
	for i, item := range strings.Split(p, "/") {
		if item == ".." {
			return fmt.Errorf("invalid path: must not contain '..': %s", p)
		}
		if len(item) > maxNameLength {
			return fmt.Errorf("invalid path: filenames must be less than or equal to %d characters", maxNameLength)
		}
		if i == 0 && strings.HasPrefix(item, "..") {
			return fmt.Errorf("invalid path: must not start with '..': %s", p)
		}
	}
	clean := path.Clean(p)
	if clean == "." {
		return fmt.Errorf("invalid path: must name a file: %q", p)
	}
	if strings.HasPrefix(clean, "..") {
		return fmt.Errorf("invalid path: must not start with '..': %s", p)
	}
	return nil
}
