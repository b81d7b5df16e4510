package main

import (
	"bufio"
	"bytes"
	"encoding/json"
	"flag"
	"os"
	"regexp"
	"slices"
	"strings"
	"testing"

	"github.com/bowline-k8s/bowline/internal/testutil"
)

var update = flag.Bool("update", false, "draw docs/demo.svg from docs/demo.cast again")

// TestDemoRecording: the recording in docs has the steps of hack/demo.sh, the picture is drawn from
// the recording, and the README shows the picture.
func TestDemoRecording(t *testing.T) {
	lines := recorded(t)
	var titles []string
	for _, l := range lines {
		if isTitle(l.text) {
			titles = append(titles, l.text)
		}
	}
	var want []string
	for _, m := range regexp.MustCompile(`(?m)^step "(.*)"$`).FindAllStringSubmatch(string(testutil.ReadFile(t, "../demo.sh")), -1) {
		want = append(want, m[1])
	}
	if len(want) < 5 || len(titles) != len(want) {
		t.Fatalf("the recording has the steps\n%s\nhack/demo.sh has\n%s", strings.Join(titles, "\n"), strings.Join(want, "\n"))
	}
	for i, title := range titles {
		pattern := regexp.MustCompile(`\\\$[a-z_]+`).ReplaceAllString(regexp.QuoteMeta(want[i]), ".+")
		if !regexp.MustCompile("^" + pattern + "$").MatchString(title) {
			t.Errorf("the recording has the step %q, hack/demo.sh %q: hack/demo.sh --record records it again", title, want[i])
		}
	}
	for _, begin := range shown {
		if !slices.ContainsFunc(titles, func(title string) bool { return strings.HasPrefix(title, begin) }) {
			t.Errorf("the picture shows a step %q, which the recording does not have", begin)
		}
	}
	if *update {
		testutil.Must(t, os.WriteFile("../../docs/demo.svg", draw(lines), 0o644))
	}
	if !bytes.Equal(draw(lines), testutil.ReadFile(t, "../../docs/demo.svg")) {
		t.Error("docs/demo.svg is not the picture of docs/demo.cast: -update draws it again")
	}
	if !strings.Contains(string(testutil.ReadFile(t, "../../README.md")), "](docs/demo.svg)") {
		t.Error("README.md does not show docs/demo.svg")
	}
}

// recorded reads docs/demo.cast.
func recorded(t *testing.T) (out []line) {
	t.Helper()
	file, err := os.Open("../../docs/demo.cast")
	testutil.Must(t, err)
	defer file.Close()
	scanner := bufio.NewScanner(file)
	scanner.Scan() // the header
	for scanner.Scan() {
		var event []any
		testutil.Must(t, json.Unmarshal(scanner.Bytes(), &event))
		out = append(out, line{event[0].(float64), strings.TrimSuffix(event[2].(string), "\r\n")})
	}
	testutil.Must(t, scanner.Err())
	return out
}

func TestDraw(t *testing.T) {
	long := strings.Repeat("é", columns+1)
	svg := string(draw([]line{
		{0.1, "Building"}, {0.2, "  hidden"},
		{5, "A web application"}, {5.1, "$ kubectl <get>"}, {6.9, "  " + long},
		{7, "Its log"}, {7, "  hidden"},
		{9, "The link to host2 is cut for 20 s"}, {9, "  # the link is cut"},
	}))
	for _, want := range []string{
		`class="time">  0 s<`, `class="title">A web application<`, `class="command">$ kubectl &lt;get&gt;<`, `class="time">  1 s<`,
		`class="output">  ` + strings.Repeat("é", columns-2) + `<`, `class="output">ééé<`, `class="time">  4 s<`, `class="event">  # the link is cut<`,
	} {
		if !strings.Contains(svg, want) {
			t.Errorf("the picture lacks %s:\n%s", want, svg)
		}
	}
	if strings.Contains(svg, "hidden") || strings.Contains(svg, "Its log") {
		t.Errorf("the picture shows a step that is no part of the story:\n%s", svg)
	}
}

func TestRun(t *testing.T) {
	dir := t.TempDir()
	cast, svg := dir+"/a.cast", dir+"/a.svg"
	testutil.Must(t, run(cast, svg, []string{"sh", "-c", `echo "A web application in $PWD/bin"; echo "  b"`}))
	lines := strings.Split(strings.TrimSpace(string(testutil.ReadFile(t, cast))), "\n")
	if len(lines) != 3 || !strings.HasPrefix(lines[0], `{"`) || !strings.HasSuffix(lines[1], `, "o", "A web application in bin\r\n"]`) || !strings.HasSuffix(lines[2], `, "o", "  b\r\n"]`) {
		t.Errorf("the recording is\n%s", strings.Join(lines, "\n"))
	}
	if picture := string(testutil.ReadFile(t, svg)); !strings.Contains(picture, "A web application in bin") {
		t.Errorf("the picture is\n%s", picture)
	}
	if err := run(cast, svg, []string{"sh", "-c", "exit 3"}); err == nil {
		t.Error("a program that fails is recorded")
	}
}
