// Package config reads the file of the daemon: YAML (or JSON, which is YAML) to
// a [gobridge.Spec] and the daemon's own blocks.
//
// Reading is strict and complete: every fault of a file is reported at once,
// each with line and column. Faults are unknown and duplicate keys, wrong types,
// a bare number where a duration belongs, and everything that
// [gobridge.Spec.Check] refuses.
//
// The keys, their types, defaults and meanings come from the tags of the Go
// structs alone; the decoder, the JSON Schema ([Schema]) and the reference
// ([Reference]) walk the same fields. The options of transports and stores are
// found through [gobridge.Kinds], so this package knows no adapter.
//
// # Text
//
// ${VAR} and ${VAR:-default} are replaced in parsed string values, once: what
// comes out is text, never YAML, and is not looked at again. In a field that is
// no string (max_in_flight: ${WINDOW}) the text is read as that field's type.
// The default applies when VAR is unset or empty; an unset VAR without one is an
// error. $${ is a literal ${. Text from the environment is not repeated in
// errors.
//
// # YAML
//
// One document of at most 4 MiB, nested at most 64 deep. Anchors and aliases
// work for whole values (policy: *common); merge keys (<<) and explicit tags
// (!!int) are refused, because both hide what a value really is. Only true and
// false are booleans, integers are plain decimal numbers, and an empty value is
// allowed only where a block or a list belongs.
package config

//go:generate go test -run ^TestReferenceIsUpToDate$ -update .
