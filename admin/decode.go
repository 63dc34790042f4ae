package admin

import (
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"net/http"
	"reflect"
	"strings"
	"time"
)

// exampleTime shows how times are written.
const exampleTime = "2026-11-01T12:00:00Z"

// decodeOptional is decode where no body is an empty object.
func (c *call) decodeOptional(v any, example string) error {
	if c.ContentLength == 0 {
		return nil
	}
	return c.decode(v, example)
}

// decode reads the body of a call, one JSON object of known fields. The example is for
// whoever sends something else.
func (c *call) decode(v any, example string) error {
	d := json.NewDecoder(http.MaxBytesReader(c.w, c.Body, maxBody))
	d.DisallowUnknownFields()
	err := d.Decode(v)
	if err == nil {
		if _, more := d.Token(); errors.Is(more, io.EOF) {
			return nil
		}
		err = errors.New("something follows the object")
	}
	if _, large := errors.AsType[*http.MaxBytesError](err); large {
		return &failure{http.StatusRequestEntityTooLarge, Error{fmt.Sprintf("body over %d bytes", maxBody), "select by filter instead of by ids"}}
	}
	if errors.Is(err, io.EOF) {
		return badRequest("send "+example, "the body is empty")
	}
	return badRequest("send "+example, "body: %s", plainly(err))
}

// plainly says what is wrong with a body in terms of JSON, not of Go.
func plainly(err error) string {
	if e, ok := errors.AsType[*json.UnmarshalTypeError](err); ok {
		kind, _, _ := strings.Cut(e.Value, " ") // without the number itself
		value := map[string]string{"array": "a list", "object": "an object", "string": "a text", "number": "a number", "bool": "true or false"}[kind]
		if e.Field == "" {
			return "it is " + value + ", not an object"
		}
		return fmt.Sprintf("%s is %s, not %s", e.Field, value, valueOf(e.Type))
	}
	if e, ok := errors.AsType[*time.ParseError](err); ok {
		return e.Value + " is not a time"
	}
	if e, ok := errors.AsType[*json.SyntaxError](err); ok {
		return fmt.Sprintf("no JSON at byte %d: %v", e.Offset, e)
	}
	if errors.Is(err, io.ErrUnexpectedEOF) {
		return "it ends in the middle of the object"
	}
	text := strings.TrimPrefix(err.Error(), "json: ")
	if strings.HasPrefix(text, "Time.") {
		return "a time is no text"
	}
	return text
}

// valueOf names what a field takes.
func valueOf(t reflect.Type) string {
	switch t.Kind() {
	case reflect.Slice:
		return "a list"
	case reflect.Struct, reflect.Pointer:
		return "an object"
	case reflect.Bool:
		return "true or false"
	case reflect.Float64:
		return "a number"
	case reflect.Int:
		return "a whole number"
	}
	return "a text"
}
