package shell

import (
	"bytes"
	"errors"
	"io"
	"strings"
	"testing"
	"testing/iotest"

	"github.com/bowline-k8s/bowline/test/corpus"
)

// FuzzCollector: the collector accepts any bytes in any pieces, keeps no more than its limit,
// and returns exactly what is between the marks.
func FuzzCollector(f *testing.F) {
	nonce := "0123456789abcdeffedcba987654321f"
	f.Add([]byte("motd\n"), []byte("out\x00put"), []byte{}, 3)
	f.Add([]byte(nonce[:31]), []byte(nonce[:31]+"x"), []byte(nonce+"z\n"), 1)
	f.Add([]byte{}, []byte{}, []byte(nonce), 100)
	corpus.Add(f)
	f.Fuzz(func(t *testing.T, noise, output, garbage []byte, size int) {
		if bytes.Contains(noise, []byte(nonce)) || bytes.Contains(output, []byte(nonce)) {
			return
		}
		code := -1
		c := &collector{nonce: []byte(nonce), max: 50, onExit: func(n int) { code = n }}
		half := len(output) / 2
		stream := string(noise) + nonce + "b\n" + nonce + "p77\n" + string(output[:half]) + nonce + "x42\n" + string(output[half:]) + nonce + "e\n"
		if strings.Count(stream, nonce) != 4 {
			return // a piece and its neighbour form a nonce
		}
		if err := c.read(&pieces{[]byte(stream), max(1, size%50)}); err != nil {
			t.Fatalf("%q: %v", stream, err)
		}
		data, begun, _ := c.output()
		if want := output[:min(len(output), 50)]; !begun || !bytes.Equal(data, want) || code != 42 || c.group != 77 {
			t.Fatalf("%q gave %q, code %d, group %d", stream, data, code, c.group)
		}
		// Invalid input causes an error or an end, but no panic.
		c = &collector{nonce: []byte(nonce), max: 50, onExit: func(int) {}}
		_ = c.read(&pieces{append([]byte(nonce+"b\n"), garbage...), max(1, size%50)})
		c = &collector{nonce: []byte(nonce), max: 50}
		_ = c.read(bytes.NewReader(garbage))
	})
}

// read feeds the collector until the end mark.
func (c *collector) read(r io.Reader) error {
	buf := make([]byte, 32<<10)
	for {
		n, err := r.Read(buf)
		done, feedErr := c.feed(buf[:n])
		if done || feedErr != nil {
			return feedErr
		}
		if err != nil {
			return err
		}
	}
}

// pieces returns some bytes per read.
type pieces struct {
	data []byte
	size int
}

func (p *pieces) Read(b []byte) (int, error) {
	if len(p.data) == 0 {
		return 0, io.EOF
	}
	n := copy(b, p.data[:min(p.size, len(p.data))])
	p.data = p.data[n:]
	return n, nil
}

func TestCollectorErrors(t *testing.T) {
	nonce := strings.Repeat("f", 32)
	for _, stream := range []string{
		"", "noise", nonce + "b\n", nonce + "e\n", nonce + "b\n" + nonce + "b\n", nonce + "b\n" + nonce + "x256\n", nonce + "b\n" + nonce + "x\n",
		nonce + "b\n" + nonce + "p1\n", nonce + "b\n" + nonce + "e\nmore", nonce + "b\n" + nonce + "e" + strings.Repeat(" ", 40),
	} {
		c := &collector{nonce: []byte(nonce), max: 10, onExit: func(int) {}}
		if err := c.read(iotest.DataErrReader(strings.NewReader(stream))); err == nil {
			t.Errorf("%q was taken", stream)
		}
	}
	c := &collector{nonce: []byte(nonce), max: 10}
	if err := c.read(iotest.ErrReader(errors.New("broken"))); err == nil || err.Error() != "broken" {
		t.Errorf("error %v", err)
	}
}

func TestQuote(t *testing.T) {
	for in, want := range map[string]string{"": "''", "a b": "'a b'", "it's": `'it'\''s'`, "a\nb": `'a'"$nl"'b'`} {
		if got := quoteLine(in); got != want {
			t.Errorf("%q becomes %s, want %s", in, got, want)
		}
	}
}
