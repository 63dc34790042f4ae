package gobridge

import (
	"bytes"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"slices"
	"strconv"
	"strings"
)

// Template renders the address of a message at a destination. Placeholders:
//
//	{topic}              the topic that the message came from
//	{topic[N]}           its level N, from 0
//	{topic[N:]}          its levels from N to the end
//	{subject}            the subject of the message
//	{header:NAME}        the first header of that name
//	{payload:json.path}  a string, number or boolean in a JSON payload; list
//	                     elements by their number, from 0
//
// A literal brace is written twice: {{ and }}. A Template is immutable and safe for
// concurrent use.
type Template struct {
	source string
	pieces []piece
}

type pieceKind uint8

const (
	pieceText pieceKind = iota
	pieceTopic
	pieceLevel
	pieceLevels
	pieceSubject
	pieceHeader
	piecePayload
)

type piece struct {
	kind pieceKind
	// text is the literal, or the placeholder as written, braces included.
	text string
	// name is the name of a header.
	name string
	// level is N of {topic[N]} and {topic[N:]}.
	level int
	// path is the JSON path.
	path []string
}

// ParseTemplate reads a template; the error says what is wrong in it.
func ParseTemplate(source string) (*Template, error) {
	t := &Template{source: source}
	var text strings.Builder
	flush := func() {
		if text.Len() > 0 {
			t.pieces = append(t.pieces, piece{kind: pieceText, text: text.String()})
			text.Reset()
		}
	}
	for rest := source; rest != ""; {
		i := strings.IndexAny(rest, "{}")
		if i < 0 {
			text.WriteString(rest)
			break
		}
		text.WriteString(rest[:i])
		brace := rest[i]
		rest = rest[i+1:]
		if rest != "" && rest[0] == brace {
			text.WriteByte(brace)
			rest = rest[1:]
			continue
		}
		if brace == '}' {
			return nil, errors.New("a } without its {; a literal } is written }}")
		}
		name, after, closed := strings.Cut(rest, "}")
		if !closed {
			return nil, fmt.Errorf("{%s has no closing }; a literal { is written {{", name)
		}
		p, err := parsePlaceholder(name)
		if err != nil {
			return nil, err
		}
		flush()
		t.pieces = append(t.pieces, p)
		rest = after
	}
	flush()
	return t, nil
}

func parsePlaceholder(name string) (piece, error) {
	p := piece{text: "{" + name + "}"}
	word, argument, hasArgument := strings.Cut(name, ":")
	switch {
	case name == "topic":
		p.kind = pieceTopic
		return p, nil
	case name == "subject":
		p.kind = pieceSubject
		return p, nil
	case strings.HasPrefix(name, "topic["):
		index, ok := strings.CutSuffix(strings.TrimPrefix(name, "topic["), "]")
		index, open := strings.CutSuffix(index, ":")
		n, err := strconv.ParseUint(index, 10, 16)
		if !ok || err != nil {
			return p, fmt.Errorf("%s is no level of the topic; write {topic[0]} or {topic[1:]}", p.text)
		}
		p.level, p.kind = int(n), pieceLevel
		if open {
			p.kind = pieceLevels
		}
		return p, nil
	case word == "header" && hasArgument && argument != "":
		p.kind, p.name = pieceHeader, argument
		return p, nil
	case word == "payload" && hasArgument:
		p.kind, p.path = piecePayload, strings.Split(argument, ".")
		if slices.Contains(p.path, "") {
			return p, fmt.Errorf("%s has an empty name in its path; write {payload:site.name}", p.text)
		}
		return p, nil
	}
	return p, fmt.Errorf("%s is no placeholder; there are {topic}, {topic[N]}, {topic[N:]}, {subject}, {header:NAME} and {payload:json.path}", p.text)
}

// String returns the template as written.
func (t *Template) String() string { return t.source }

// Static returns the address of a template without placeholders.
func (t *Template) Static() (address string, ok bool) {
	switch {
	case len(t.pieces) == 0:
		return "", true
	case len(t.pieces) == 1 && t.pieces[0].kind == pieceText:
		return t.pieces[0].text, true
	}
	return "", false
}

// Sample returns an address like those that Render returns: with a plain word in
// the place of every placeholder.
func (t *Template) Sample() string {
	var b strings.Builder
	for i := range t.pieces {
		if p := &t.pieces[i]; p.kind == pieceText {
			b.WriteString(p.text)
		} else {
			b.WriteByte('x')
		}
	}
	return b.String()
}

// Render returns the address of a message. A placeholder without a value is an
// *[Error] with CodeAddressTemplate, ClassRejected, that names it; the address is
// not checked for its transport. A constant and a lone {topic} do not allocate;
// the payload is parsed at most once.
func (t *Template) Render(e *Envelope) (string, error) {
	if s, ok := t.Static(); ok {
		return s, nil
	}
	var body payload
	if len(t.pieces) == 1 {
		s, err := t.pieces[0].value(e, &body)
		if err != nil {
			return "", t.missing(&t.pieces[0], err)
		}
		return s, nil
	}
	buf := make([]byte, 0, len(t.source)+len(e.Topic))
	for i := range t.pieces {
		s, err := t.pieces[i].value(e, &body)
		if err != nil {
			return "", t.missing(&t.pieces[i], err)
		}
		buf = append(buf, s...)
	}
	return string(buf), nil
}

func (t *Template) missing(p *piece, err error) error {
	return &Error{
		Code: CodeAddressTemplate, Class: ClassRejected,
		Op: "address " + strconv.Quote(t.source), Err: fmt.Errorf("no value for %s: %w", p.text, err),
	}
}

var (
	errNoTopic   = errors.New("the message has no topic")
	errNoLevel   = errors.New("the topic has fewer levels")
	errNoSubject = errors.New("the message has no subject")
	errNoHeader  = errors.New("the message has no such header")
	errNotJSON   = errors.New("the payload is not JSON")
	errNoField   = errors.New("the payload has no such field")
	errNull      = errors.New("the field is null")
	errComposite = errors.New("the field is an object or a list, not a single value")
)

func (p *piece) value(e *Envelope, body *payload) (string, error) {
	switch p.kind {
	case pieceText:
		return p.text, nil
	case pieceTopic:
		return e.Topic, orMissing(e.Topic != "", errNoTopic)
	case pieceLevel, pieceLevels:
		s, ok := topicLevels(e.Topic, p.level, p.kind == pieceLevels)
		return s, orMissing(ok, errNoLevel)
	case pieceSubject:
		return e.Subject, orMissing(e.Subject != "", errNoSubject)
	case pieceHeader:
		s, ok := e.Header(p.name)
		return s, orMissing(ok, errNoHeader)
	}
	return body.lookup(e.Payload, p.path)
}

func orMissing(ok bool, err error) error {
	if ok {
		return nil
	}
	return err
}

// topicLevels returns level n of a topic, or everything from it on.
func topicLevels(topic string, n int, toEnd bool) (string, bool) {
	if topic == "" {
		return "", false
	}
	for range n {
		_, rest, more := cutLevel(topic)
		if !more {
			return "", false
		}
		topic = rest
	}
	if toEnd {
		return topic, true
	}
	level, _, _ := cutLevel(topic)
	return level, true
}

// payload is a JSON payload, parsed on the first look-up of a render.
type payload struct {
	parsed bool
	root   any
	err    error
}

func (b *payload) lookup(raw []byte, path []string) (string, error) {
	if !b.parsed {
		b.parsed = true
		b.root, b.err = parseJSON(raw)
	}
	if b.err != nil {
		return "", b.err
	}
	at := b.root
	for _, name := range path {
		switch node := at.(type) {
		case map[string]any:
			child, ok := node[name]
			if !ok {
				return "", errNoField
			}
			at = child
		case []any:
			i, err := strconv.Atoi(name)
			if err != nil || i < 0 || i >= len(node) {
				return "", errNoField
			}
			at = node[i]
		default:
			return "", errNoField
		}
	}
	switch v := at.(type) {
	case string:
		return v, nil
	case json.Number:
		return v.String(), nil
	case bool:
		return strconv.FormatBool(v), nil
	case nil:
		return "", errNull
	}
	return "", errComposite
}

// parseJSON keeps numbers as they are written: 1.50 stays 1.50.
func parseJSON(raw []byte) (root any, err error) {
	d := json.NewDecoder(bytes.NewReader(raw))
	d.UseNumber()
	if d.Decode(&root) != nil {
		return nil, errNotJSON
	}
	if _, err := d.Token(); err != io.EOF {
		return nil, errNotJSON
	}
	return root, nil
}

// Pattern returns a topic filter that matches every topic name that the template
// can render from messages whose topics match the given filter, and perhaps
// more. It is what the search for cycles knows of an address. ok is false when no
// such message has all the levels that the template asks for.
func (t *Template) Pattern(filter string) (pattern string, ok bool) {
	_, filter, _ = SplitShare(filter)
	var b patternBuilder
	for i := range t.pieces {
		p := &t.pieces[i]
		switch p.kind {
		case pieceText:
			b.literal(p.text)
		case pieceTopic:
			b.filter(filter)
		case pieceLevel, pieceLevels:
			levels, ok := filterLevels(filter, p.level)
			if !ok {
				return "", false
			}
			if p.kind == pieceLevel {
				level, _, _ := cutLevel(levels)
				if level == "#" {
					level = "+"
				}
				levels = level
			}
			b.filter(levels)
		default:
			// The value is any text, with any number of levels.
			b.filter("#")
		}
		if b.open {
			var next string
			if i+1 < len(t.pieces) && t.pieces[i+1].kind == pieceText {
				next = t.pieces[i+1].text
			}
			return b.finishOpen(i+1 == len(t.pieces) || strings.HasPrefix(next, "/")), true
		}
	}
	b.closeLevel()
	return strings.Join(b.levels, "/"), true
}

// filterLevels returns a filter for the levels from n on of the topics that match
// the given filter.
func filterLevels(filter string, n int) (string, bool) {
	for range n {
		level, rest, more := cutLevel(filter)
		switch {
		case level == "#":
			return "#", true
		case !more:
			return "", false
		}
		filter = rest
	}
	return filter, true
}

// patternBuilder collects the levels of a pattern.
type patternBuilder struct {
	levels []string
	text   string // the level being written
	wild   bool   // it holds a part that can be anything
	open   bool   // from here on anything can follow, perhaps nothing
	absent bool   // and then the level before is the last one
}

func (b *patternBuilder) closeLevel() {
	if b.wild || strings.ContainsAny(b.text, "+#") {
		b.text = "+"
	}
	b.levels = append(b.levels, b.text)
	b.text, b.wild = "", false
}

func (b *patternBuilder) literal(s string) {
	for {
		level, rest, more := cutLevel(s)
		b.text += level
		if !more {
			return
		}
		b.closeLevel()
		s = rest
	}
}

func (b *patternBuilder) filter(f string) {
	for first := true; ; first = false {
		level, rest, more := cutLevel(f)
		switch level {
		case "#":
			b.open, b.absent = true, !first
			return
		case "+":
			b.wild = true
		default:
			b.text += level
		}
		if !more {
			return
		}
		b.closeLevel()
		f = rest
	}
}

// finishOpen ends a pattern in #. Where the # can stand for no level at all, what
// follows it in the template belongs to the level before, unless it starts a new one.
func (b *patternBuilder) finishOpen(newLevel bool) string {
	if b.absent && !newLevel {
		b.levels = b.levels[:len(b.levels)-1]
	}
	return strings.Join(append(b.levels, "#"), "/")
}
