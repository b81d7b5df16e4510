package pod

import (
	"bytes"
	"cmp"
	"encoding/json"
	"errors"
	"fmt"
	"reflect"
	"strings"

	"k8s.io/apimachinery/pkg/api/resource"
)

// Bounds of the quantities that a host may name. resource.Quantity computes with all digits of a
// number: it would make two billion of "1e2000000000". The API server caps quantities at 2^63-1.
const (
	maxQuantityDigits  = 400
	maxExponentDigits  = 3
	shownQuantityBytes = 40
)

var quantity = reflect.TypeFor[resource.Quantity]()

// CheckQuantities returns an error if data is not JSON, or if it names a quantity that takes more
// memory and time than its text, at a place where the type of into has a resource.Quantity. Whatever
// comes from a host is checked before it is decoded into such a type.
func CheckQuantities(data []byte, into any) error {
	if !json.Valid(data) { // also bounds how deep it is nested
		return errors.New("not valid JSON")
	}
	d := json.NewDecoder(bytes.NewReader(data))
	d.UseNumber()
	return checkQuantities(d, reflect.TypeOf(into))
}

// checkQuantities reads one value. A key that occurs twice is checked twice, because the decoder of
// a struct decodes both. t is nil where the type has no field for the value.
func checkQuantities(d *json.Decoder, t reflect.Type) error {
	for t != nil && t.Kind() == reflect.Pointer {
		t = t.Elem()
	}
	token, err := d.Token()
	if err != nil {
		return err
	}
	switch token := token.(type) {
	case json.Delim:
		for d.More() {
			key := ""
			if token == '{' {
				name, err := d.Token()
				if err != nil {
					return err
				}
				key, _ = name.(string)
			}
			if err := checkQuantities(d, within(t, key)); err != nil {
				return err
			}
		}
		_, err = d.Token() // the closing delimiter
		return err
	case string:
		if t == quantity {
			return checkQuantity(token)
		}
	case json.Number:
		if t == quantity {
			return checkQuantity(token.String())
		}
	}
	return nil
}

// within returns the type of an element of t, or of the field that a decoder fills from key; nil if
// there is none. Decoders ignore the case of keys.
func within(t reflect.Type, key string) reflect.Type {
	if t == nil {
		return nil
	}
	switch t.Kind() {
	case reflect.Slice, reflect.Array, reflect.Map:
		return t.Elem()
	case reflect.Struct:
		for f := range t.Fields() {
			name, _, _ := strings.Cut(f.Tag.Get("json"), ",")
			if name == "" && f.Anonymous {
				if found := within(f.Type, key); found != nil {
					return found
				}
			}
			if strings.EqualFold(cmp.Or(name, f.Name), key) {
				return f.Type
			}
		}
	}
	return nil
}

func checkQuantity(text string) error {
	if unboundedQuantity(text) {
		return fmt.Errorf("quantity %.*q is out of bounds", shownQuantityBytes, text)
	}
	return nil
}

// unboundedQuantity reports whether a text has the form of a quantity, with too many digits in the
// number or in its exponent.
func unboundedQuantity(text string) bool {
	text = strings.TrimLeft(strings.TrimSpace(text), "+-") // the decoder trims as well
	suffix := strings.TrimLeft(text, "0123456789.")
	digits := len(text) - len(suffix) // may be 0: the API accepts an exponent without a number
	exponent := strings.TrimLeft(suffix, "eE")
	exponent = strings.TrimLeft(exponent, "+-")
	exponent = strings.TrimLeft(exponent, "0")
	switch {
	case suffix == "" || len(suffix) <= 2 && strings.Trim(suffix, "numkKMGTPEi") == "":
		return digits > maxQuantityDigits
	case (suffix[0] == 'e' || suffix[0] == 'E') && strings.Trim(exponent, "0123456789") == "":
		return digits > maxQuantityDigits || len(exponent) > maxExponentDigits
	default: // not a quantity
		return false
	}
}
