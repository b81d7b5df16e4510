// Command record runs a program, writes its output with times as an asciicast, and draws a part of
// it as a picture: hack/demo.sh --record makes docs/demo.cast and docs/demo.svg with it.
package main

import (
	"bufio"
	"encoding/json"
	"fmt"
	"os"
	"os/exec"
	"strings"
	"time"
	"unicode/utf8"
)

// columns is the width of the picture in characters; longer lines wrap, as on a terminal.
const columns = 100

// shown are the beginnings of the titles whose steps the picture shows: the story of the cut link.
var shown = []string{"One Bowline process", "A web application", "The link to host2 is cut"}

// line is one line of output, and when it was printed, in seconds since the program began.
type line struct {
	at   float64
	text string
}

func main() {
	if len(os.Args) < 4 {
		fmt.Fprintln(os.Stderr, "usage: record CAST SVG PROGRAM [ARGUMENT...]")
		os.Exit(2)
	}
	if err := run(os.Args[1], os.Args[2], os.Args[3:]); err != nil {
		fmt.Fprintln(os.Stderr, "record:", err)
		os.Exit(1)
	}
}

func run(cast, svg string, command []string) error {
	dir, err := os.Getwd()
	if err != nil {
		return err
	}
	cmd := exec.Command(command[0], command[1:]...)
	cmd.Stderr = os.Stderr
	out, err := cmd.StdoutPipe()
	if err != nil {
		return err
	}
	began := time.Now()
	if err := cmd.Start(); err != nil {
		return err
	}
	var lines []line
	scanner := bufio.NewScanner(out)
	for scanner.Scan() {
		fmt.Println(scanner.Text())
		// Paths in the checkout are relative: the recording does not depend on where it lies.
		at := time.Since(began).Round(time.Millisecond).Seconds() // as the file has it
		lines = append(lines, line{at, strings.ReplaceAll(scanner.Text(), dir+"/", "")})
	}
	if err := scanner.Err(); err != nil {
		return err
	}
	if err := cmd.Wait(); err != nil {
		return err
	}
	if err := os.WriteFile(cast, asciicast(lines, began), 0o644); err != nil {
		return err
	}
	return os.WriteFile(svg, draw(lines), 0o644)
}

// asciicast writes the lines in asciinema's file format, version 2.
func asciicast(lines []line, began time.Time) []byte {
	header := map[string]any{"version": 2, "width": columns, "height": 40, "timestamp": began.Unix(), "title": "make demo"}
	b, _ := json.Marshal(header) // cannot fail: numbers and texts
	var out strings.Builder
	fmt.Fprintf(&out, "%s\n", b)
	for _, l := range lines {
		text, _ := json.Marshal(l.text + "\r\n")
		fmt.Fprintf(&out, "[%.3f, \"o\", %s]\n", l.at, text)
	}
	return []byte(out.String())
}

// isTitle reports whether a line is the title of a step: the demo indents all that it shows, except
// commands. Commands begin with a dollar.
func isTitle(text string) bool {
	return text != "" && !strings.HasPrefix(text, " ") && !strings.HasPrefix(text, "$ ")
}

// draw returns a picture of the shown steps, with the seconds since the first of them on the left.
func draw(lines []line) []byte {
	const size, lead, left, top = 14, 19, 62, 26
	var body strings.Builder
	rows, zero, last, on := 0, -1.0, -1, false
	text := func(x int, class, s string) {
		fmt.Fprintf(&body, "<text x=\"%d\" y=\"%d\" class=\"%s\">%s</text>\n", x, top+lead*rows, class, escaper.Replace(s))
	}
	for _, l := range lines {
		if isTitle(l.text) {
			if on = isShown(l.text); on && zero < 0 {
				zero = l.at
			} else if on {
				rows++ // an empty row before the next step
			}
		}
		if !on || l.text == "" {
			continue
		}
		if second := int(l.at - zero); second != last {
			last = second
			text(8, "time", fmt.Sprintf("%3d s", second))
		}
		class := "output"
		switch {
		case isTitle(l.text):
			class = "title"
		case strings.HasPrefix(l.text, "$ "):
			class = "command"
		case strings.HasPrefix(l.text, "  # "):
			class = "event"
		}
		for rest := l.text; ; {
			row := rest
			for utf8.RuneCountInString(row) > columns {
				_, n := utf8.DecodeLastRuneInString(row)
				row = row[:len(row)-n]
			}
			text(left, class, row)
			rows++
			if rest = rest[len(row):]; rest == "" {
				break
			}
		}
	}
	width, height := left+columns*size*3/5+16, top+lead*rows
	return fmt.Appendf(nil, `<svg xmlns="http://www.w3.org/2000/svg" viewBox="0 0 %d %d" width="%d" height="%d" role="img" xml:space="preserve">
<title>A recording of make demo: the SSH link to a host is cut and returns, and no container restarts</title>
<style>
text { font: %dpx ui-monospace, SFMono-Regular, Menlo, Consolas, "DejaVu Sans Mono", monospace; fill: #c9d1d9 }
.time { fill: #6e7681 } .title { fill: #79c0ff; font-weight: bold } .command { fill: #ffffff; font-weight: bold } .event { fill: #f0883e; font-weight: bold }
</style>
<rect width="100%%" height="100%%" rx="8" fill="#0d1117"/>
%s</svg>
`, width, height, width, height, size, body.String())
}

func isShown(title string) bool {
	for _, begin := range shown {
		if strings.HasPrefix(title, begin) {
			return true
		}
	}
	return false
}

var escaper = strings.NewReplacer("&", "&amp;", "<", "&lt;", ">", "&gt;")
