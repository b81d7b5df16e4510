package bowline

import (
	"go/scanner"
	"go/token"
	"io/fs"
	"os"
	"path/filepath"
	"regexp"
	"slices"
	"strings"
	"testing"

	"github.com/bowline-k8s/bowline/internal/testutil"
)

// retired are words that readers of this field do not search for, each with the word that replaces
// it. docs/glossary.md has the words that stay.
var retired = map[string]string{
	`anew`:                   "again, re-read, recreated",
	`whoever`:                "anyone who, the caller",
	`nobody`:                 "no one, nothing, or a subject that acts",
	`mend(s|ed|ing)?`:        "fix",
	`(is|are|was|were) told`: "learns, gets, is notified",
	`far (machine|host)s?`:   "remote host",
	`near and far`:           "locally and over SSH",
	`(is|are|be) one's`:      "belongs to",
	`go(es)? on with`:        "continues",
	`machine that is far`:    "remote host",
	`is another's`:           "belongs to another",
	`somebody`:               "someone, another program, a user",
	`is to be (had|seen)`:    "a subject that acts",
	`goes on`:                "continues",
	`drive(s|n)?`:            "manage, run",
}

// TestRetiredWords: comments, messages and documents keep to the words that a kubelet engineer
// searches for. A message is a string with a blank in it.
func TestRetiredWords(t *testing.T) {
	var patterns []string
	for word := range retired {
		patterns = append(patterns, word)
	}
	slices.Sort(patterns)
	any := regexp.MustCompile(`(?i)\b(` + strings.Join(patterns, "|") + `)\b`)
	texts, documents := 0, 0
	err := filepath.WalkDir(".", func(path string, d fs.DirEntry, err error) error {
		switch {
		case err != nil:
			return err
		case d.IsDir() && slices.Contains([]string{".git", "bin", "testdata"}, d.Name()):
			return fs.SkipDir
		case path == "words_test.go": // has them
		case strings.HasSuffix(path, ".go"):
			src, err := os.ReadFile(path)
			if err != nil {
				return err
			}
			found, names := textsOf(path, src)
			for _, c := range found {
				texts++
				for _, found := range any.FindAllString(c.text, -1) {
					if names[found] {
						continue // the name of something in the file
					}
					t.Errorf("%s:%d: %q is retired: write %s", path, c.line, found, instead(found))
				}
			}
		case slices.Contains([]string{".md", ".sh", ".awk", ".tpl", ".yaml"}, filepath.Ext(path)) || path == "Makefile":
			src, err := os.ReadFile(path)
			if err != nil {
				return err
			}
			documents++
			text := string(src)
			if filepath.Ext(path) == ".md" {
				text = withoutBlocks(text) // what a program printed is its own
			}
			for i, line := range strings.Split(text, "\n") {
				if strings.Contains(line, ":x:") || strings.Contains(line, "-drive file=") {
					continue // a user in a passwd file, an option of QEMU
				}
				for _, found := range any.FindAllString(line, -1) {
					t.Errorf("%s:%d: %q is retired: write %s", path, i+1, found, instead(found))
				}
			}
		}
		return nil
	})
	testutil.Must(t, err)
	if texts < 10000 || documents < 100 {
		t.Errorf("looked at %d comments and messages and %d documents: there are more", texts, documents)
	}
}

// instead is what to write for a word that was found.
func instead(found string) string {
	for word, other := range retired {
		if regexp.MustCompile(`(?i)^(` + word + `)$`).MatchString(found) {
			return other
		}
	}
	return "another word"
}

// located is a comment or a message of a Go file, with the line where it begins.
type located struct {
	line int
	text string
}

// textsOf returns the comments of a Go file and its strings with a blank. names are the
// identifiers in its code, which a comment may use.
func textsOf(path string, src []byte) (out []located, names map[string]bool) {
	names = map[string]bool{}
	var s scanner.Scanner
	files := token.NewFileSet()
	file := files.AddFile(path, -1, len(src))
	s.Init(file, src, nil, scanner.ScanComments)
	for {
		at, kind, text := s.Scan()
		switch kind {
		case token.EOF:
			return out, names
		case token.IDENT:
			names[text] = true
		case token.COMMENT:
			out = append(out, located{file.Line(at), text})
		case token.STRING:
			if strings.Contains(text, " ") {
				out = append(out, located{file.Line(at), text})
			}
		}
	}
}

// withoutBlocks empties the lines of code blocks and inline code of a document.
func withoutBlocks(text string) string {
	lines, fenced := strings.Split(text, "\n"), false
	for i, line := range lines {
		fence := strings.HasPrefix(strings.TrimSpace(line), "```")
		if fence {
			fenced = !fenced
		}
		if fenced || fence || strings.HasPrefix(line, "    ") {
			lines[i] = ""
			continue
		}
		lines[i] = inline.ReplaceAllString(line, "")
	}
	return strings.Join(lines, "\n")
}

var inline = regexp.MustCompile("`[^`]*`")
