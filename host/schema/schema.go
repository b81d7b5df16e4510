// Package schema reads and writes what Bowline keeps on a machine between two of its
// processes: JSON with the version of its schema.
//
// A field that is added, removed or given another meaning makes a new version. So a
// file of the version that a process knows has no field that the process would drop,
// and a file of a newer version is left as it is.
package schema

import (
	"bytes"
	"encoding/json"
	"errors"
	"fmt"
	"io"
)

// NewerError is that a record was written by a newer Bowline.
type NewerError struct{ Found, Known int }

func (e *NewerError) Error() string {
	return fmt.Sprintf("it has schema version %d, and this Bowline knows versions up to %d; run the newer Bowline that wrote it", e.Found, e.Known)
}

// Newer says whether err is a NewerError.
func Newer(err error) bool {
	var newer *NewerError
	return errors.As(err, &newer)
}

// Bounds of a record: an object takes two bytes in it, and hundreds once it is decoded. A
// machine with 500 images, each pulled by 100 secrets, has 55,000 objects in one.
const (
	maxObjects = 64 << 10  // objects and lists
	maxValues  = 256 << 10 // of all of them
)

// check counts what a record consists of. It counts what is within strings too, where
// production has none of these characters.
func check(data []byte) error {
	objects := bytes.Count(data, []byte("{")) + bytes.Count(data, []byte("["))
	values := bytes.Count(data, []byte(","))
	if objects > maxObjects || values > maxValues {
		return fmt.Errorf("it has %d objects and %d values, and the most are %d and %d", objects, values, maxObjects, maxValues)
	}
	return nil
}

// Decode reads a record whose schema version is at most known. Version 0, which has no
// such field, is what the first releases wrote. An error leaves into as it was, but for
// a NewerError: what this version knows of the record is read then, for display only.
func Decode(data []byte, known int, into any) error {
	if err := check(data); err != nil {
		return err
	}
	var header struct {
		SchemaVersion int `json:"schemaVersion"`
	}
	if err := json.Unmarshal(data, &header); err != nil {
		return err
	}
	switch v := header.SchemaVersion; {
	case v > known:
		_ = json.Unmarshal(data, into) // whatever can be shown of it
		return &NewerError{Found: v, Known: known}
	case v < 0:
		return fmt.Errorf("schema version %d does not exist", v)
	case v == 0:
		return json.Unmarshal(data, into)
	}
	d := json.NewDecoder(bytes.NewReader(data))
	d.DisallowUnknownFields()
	if err := d.Decode(into); err != nil {
		return err
	}
	if _, err := d.Token(); !errors.Is(err, io.EOF) {
		return errors.New("something follows the record")
	}
	return nil
}

// Blank says whether a file holds nothing: spaces, or the NULs that a power cut leaves
// of a file whose content had not reached the disk.
func Blank(data []byte) bool { return len(bytes.Trim(data, " \t\r\n\x00")) == 0 }
