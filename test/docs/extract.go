package docs

import (
	"fmt"
	"regexp"
	"strings"
)

// Command is one line that a document tells the reader to run, or a file to write.
type Command struct {
	Line    int    // in the document, from 1
	Text    string // for a file: its content
	Machine bool   // runs on the machine, not beside Bowline
	File    string // the name of a file, relative to the reader's directory; "": this is a command
	// Begins marks the first command of its block. Prints, on the last of a block, is the expected
	// output of the block's commands (Matches).
	Begins bool
	Prints string
}

// Elsewhere reports whether this is a file of a machine that the reader may not have: it is shown,
// and not written.
func (c *Command) Elsewhere() bool { return strings.HasPrefix(c.File, "/") }

var (
	inline  = regexp.MustCompile("`([^`]+)`")
	program = regexp.MustCompile(`^(sudo |)(bowline|kubectl|helm|make|ssh|ssh-keygen|ssh-keyscan|systemctl|apt-get|cat|echo|chmod|sed|usermod|visudo) \S+ \S`)
)

// Extract returns the commands of a document. They are in fenced blocks: of sh, or of "sh machine";
// of text, which is the output of the block of commands before it; and of "yaml FILE", which is a
// file of that name. A code block of any other kind is an error, and so is a command with its
// arguments in the running text that no block has.
func Extract(markdown string) ([]Command, error) {
	var commands []Command
	var prose []Command
	kind, in, opened := "", false, 0
	var block []string
	for i, line := range strings.Split(markdown, "\n") {
		text := strings.TrimSpace(line)
		switch {
		case strings.HasPrefix(text, "```") && in:
			in = false
			found, err := closed(kind, opened, block, commands)
			if err != nil {
				return nil, fmt.Errorf("line %d: %w", opened, err)
			}
			commands = found
		case strings.HasPrefix(text, "```"):
			kind, in, opened, block = strings.TrimPrefix(text, "```"), true, i+1, nil
		case in:
			block = append(block, line)
		case strings.HasPrefix(line, "    "), strings.HasPrefix(line, "\t"):
			return nil, fmt.Errorf("line %d: an indented block, which no test runs: put it between fences", i+1)
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
		// "bowline host prepare" refers to a command of a block.
		if !has(commands, p.Text) {
			return nil, fmt.Errorf("line %d: %q is said in the text, and no block has it", p.Line, p.Text)
		}
	}
	return commands, nil
}

// closed adds the commands of a block, whose fence is in the line opened.
func closed(kind string, opened int, block []string, commands []Command) ([]Command, error) {
	file, isFile := strings.CutPrefix(kind, "yaml ")
	switch {
	case kind == "sh", kind == "sh machine":
		first := true
		for i, line := range block {
			if text := strings.TrimSpace(line); text != "" {
				commands = append(commands, Command{Line: opened + 1 + i, Text: text, Machine: kind == "sh machine", Begins: first})
				first = false
			}
		}
	case kind == "text":
		last := len(commands) - 1
		if last < 0 || commands[last].File != "" || commands[last].Prints != "" {
			return nil, fmt.Errorf("a block of text, and no command before it that could print it")
		}
		if strings.TrimSpace(strings.Join(block, "")) == "" {
			return nil, fmt.Errorf("an empty block of text, which any output would be")
		}
		commands[last].Prints = strings.Join(block, "\n") + "\n"
	case isFile:
		commands = append(commands, Command{Line: opened, Text: strings.Join(block, "\n") + "\n", File: file, Begins: true})
	default:
		return nil, fmt.Errorf("a block of %q, which no test runs: make it sh, \"sh machine\", text or \"yaml FILE\"", kind)
	}
	return commands, nil
}

func has(commands []Command, text string) bool {
	for _, c := range commands {
		if c.File == "" && strings.Contains(c.Text, text) {
			return true
		}
	}
	return false
}
