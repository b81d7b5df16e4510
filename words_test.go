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
	`anew`:                          "again, re-read, recreated",
	`whoever`:                       "anyone who, the caller",
	`nobody`:                        "no one, nothing, or a subject that acts",
	`mend(s|ed|ing)?`:               "fix",
	`(is|are|was|were) told`:        "learns, gets, is notified",
	`far (machine|host|end|side)s?`: "remote host, remote end",
	`near and far`:                  "locally and over SSH",
	`(is|are|be) one's`:             "belongs to",
	`go(es)? on with`:               "continues",
	`machine that is far`:           "remote host",
	`is another's`:                  "belongs to another",
	`somebody`:                      "someone, another program, a user",
	`is to be (had|seen)`:           "a subject that acts",
	`goes on`:                       "continues",
	`drive(s|n)?`:                   "manage, run",
	`judg(e|es|ed|ing|e?ment)`:      "check, decide; of a pod: admit",
	`mourn(s|ed|ing)?`:              "wait for the end of its mirror pod",
	`bury|buries|buried`:            "forget, end",
	`namesakes?`:                    "of the same name",
	`who looks`:                     "a look, a subject that acts",
	`who gives way`:                 "which pod is evicted or preempted",
}

// TestRetiredWords: comments, messages, documents and the names in code keep to the words that a
// kubelet engineer searches for. A message is a string with a blank in it.
func TestRetiredWords(t *testing.T) {
	var all, single []string
	for word := range retired {
		all = append(all, word)
		if !strings.Contains(word, " ") {
			single = append(single, word)
		}
	}
	slices.Sort(all)
	any := regexp.MustCompile(`(?i)\b(` + strings.Join(all, "|") + `)\b`)
	name := regexp.MustCompile(`(?i)^(` + strings.Join(single, "|") + `)$`)
	texts, names, documents := 0, 0, 0
	report := func(path string, line int, found string) {
		t.Errorf("%s:%d: %q is retired: write %s", path, line, found, instead(found))
	}
	err := filepath.WalkDir(".", func(path string, d fs.DirEntry, err error) error {
		switch {
		case err != nil:
			return err
		case d.IsDir() && slices.Contains([]string{".git", "bin", "corpus", "fuzz"}, d.Name()):
			return fs.SkipDir
		case path == "words_test.go": // has them
		case strings.HasSuffix(path, ".go"):
			src, err := os.ReadFile(path)
			if err != nil {
				return err
			}
			found, named := textsOf(path, src)
			for _, c := range found {
				texts++
				for _, found := range any.FindAllString(c.text, -1) {
					if named[found] > 0 {
						continue // the name of something in the file
					}
					report(path, c.line, found)
				}
			}
			if generated.Match(src) {
				return nil
			}
			for id, line := range named {
				names++
				for _, part := range partsOf(id) {
					if name.MatchString(part) {
						report(path, line, part)
					}
				}
			}
		case slices.Contains([]string{".md", ".sh", ".awk", ".tpl", ".txt", ".yaml"}, filepath.Ext(path)) || path == "Makefile":
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
					report(path, i+1, found)
				}
			}
		}
		return nil
	})
	testutil.Must(t, err)
	if texts < 10000 || names < 10000 || documents < 100 {
		t.Errorf("looked at %d comments and messages, %d names and %d documents: there are more", texts, names, documents)
	}
}

// TestPartsOfNames: a retired word is found in any part of a name.
func TestPartsOfNames(t *testing.T) {
	for id, want := range map[string]string{
		"judgeEnd": "judge End", "KubeletDrives": "Kubelet Drives", "anew": "anew", "driveHTTPOnce": "drive HTTP Once",
		"TestURLs": "Test UR Ls", "of_judges": "of judges", "v1": "v1", "_": "",
	} {
		if got := strings.Join(partsOf(id), " "); got != want {
			t.Errorf("%s: %q, want %q", id, got, want)
		}
	}
}

// generated matches the header of a generated file.
var generated = regexp.MustCompile(`(?m)^// Code generated .* DO NOT EDIT\.$`)

// partsOf splits a name in Go code into its words.
func partsOf(id string) (parts []string) {
	for _, word := range strings.Split(id, "_") {
		begin := 0
		for i := 1; i < len(word); i++ {
			upper := func(i int) bool { return word[i] >= 'A' && word[i] <= 'Z' }
			lower := func(i int) bool { return word[i] >= 'a' && word[i] <= 'z' }
			if upper(i) && (!upper(i-1) || i+1 < len(word) && lower(i+1)) {
				parts = append(parts, word[begin:i])
				begin = i
			}
		}
		if word != "" {
			parts = append(parts, word[begin:])
		}
	}
	return parts
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
// identifiers in its code, which a comment may use, with the line of the first use.
func textsOf(path string, src []byte) (out []located, names map[string]int) {
	names = map[string]int{}
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
			if names[text] == 0 {
				names[text] = file.Line(at)
			}
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
