package sshtest

import (
	"bufio"
	"fmt"
	"io"
	"regexp"
	"strconv"
)

var request = regexp.MustCompile(`^([0-9a-f]{32}) (?:direct|inside|foreign) [0-9]+ (-|[0-9]+) [0-9]+ ([0-9]+)(?: .*)?\n$`)

// Lie is the remote end of a session that follows the protocol of host/ssh/shell but runs no
// script: it sends an answer of its own. It returns when in ends, or on the first error.
func Lie(in io.Reader, stdout, stderr io.Writer, answer func(stdout io.Writer) error) error {
	lines := bufio.NewReader(in)
	for {
		line, err := lines.ReadString('\n')
		if err != nil {
			return err
		}
		m := request.FindStringSubmatch(line)
		if m == nil {
			continue // of the text that starts the shell
		}
		input, _ := strconv.Atoi(m[2])
		script, _ := strconv.Atoi(m[3])
		if _, err := lines.Discard(script + input); err != nil {
			return err
		}
		nonce := m[1]
		if _, err := fmt.Fprintf(stdout, "%sb\n%sp77777777\n", nonce, nonce); err != nil {
			return err
		}
		if err := answer(stdout); err != nil {
			return err
		}
		for _, end := range []struct {
			to   io.Writer
			text string
		}{{stdout, "%sx0\n%[1]se\n"}, {stderr, "%sb\n%[1]sx0\n%[1]se\n"}} {
			if _, err := fmt.Fprintf(end.to, end.text, nonce); err != nil {
				return err
			}
		}
	}
}
