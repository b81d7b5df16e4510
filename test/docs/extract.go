package docs

import (
	"fmt"
	"regexp"
	"strings"
)

// Command is one line that a reader is told to run.
type Command struct {
	Line    int // of the document, from 1
	Text    string
	Machine bool // it is run on the machine, and not beside Bowline
}

var (
	inline  = regexp.MustCompile("`([^`]+)`")
	program = regexp.MustCompile(`^(sudo |)(bowline|kubectl|ssh|ssh-keygen|ssh-keyscan|systemctl|apt-get|cat|echo|chmod|sed|usermod|visudo) \S+ \S`)
)

// Extract returns the commands of a document. They stand in fenced blocks of sh, or of
// "sh machine"; a code block of any other kind is an error, and so is a command with
// its arguments in the running text that no block has.
func Extract(markdown string) ([]Command, error) {
	var commands []Command
	var prose []Command
	kind, in := "", false
	for i, line := range strings.Split(markdown, "\n") {
		text := strings.TrimSpace(line)
		switch {
		case strings.HasPrefix(text, "```") && in:
			in = false
		case strings.HasPrefix(text, "```"):
			kind, in = strings.TrimPrefix(text, "```"), true
			if kind != "sh" && kind != "sh machine" {
				return nil, fmt.Errorf("line %d: a block of %q, which nobody runs: make it sh, or \"sh machine\"", i+1, kind)
			}
		case in && text != "":
			commands = append(commands, Command{Line: i + 1, Text: text, Machine: kind == "sh machine"})
		case strings.HasPrefix(line, "    "), strings.HasPrefix(line, "\t"):
			return nil, fmt.Errorf("line %d: an indented block, which nobody runs: put it between fences", i+1)
		default:
			for _, m := range inline.FindAllStringSubmatch(line, -1) {
				if program.MatchString(m[1]) {
					prose = append(prose, Command{Line: i + 1, Text: m[1]})
				}
			}
		}
	}
	if in {
		return nil, fmt.Errorf("the last block has no end")
	}
	for _, p := range prose {
		// "bowline host prepare" speaks of a command of a block.
		if !has(commands, p.Text) {
			return nil, fmt.Errorf("line %d: %q is said in the text, and no block has it", p.Line, p.Text)
		}
	}
	return commands, nil
}

func has(commands []Command, text string) bool {
	for _, c := range commands {
		if strings.Contains(c.Text, text) {
			return true
		}
	}
	return false
}
