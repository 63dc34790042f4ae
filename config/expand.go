package config

import (
	"fmt"
	"strconv"
	"strings"
)

// expand replaces ${VAR} and ${VAR:-default} in one string value, once; $${ is a
// literal ${. values has what each variable stood for. A fault names the variable
// and never its text.
func expand(s string, env func(string) (string, bool)) (text string, values []string, what, hint string) {
	const literal = "write $${ for a literal ${"
	var out strings.Builder
	for {
		at := strings.Index(s, "${")
		if at < 0 {
			out.WriteString(s)
			return out.String(), values, "", ""
		}
		if at > 0 && s[at-1] == '$' {
			out.WriteString(s[:at-1] + "${")
			s = s[at+2:]
			continue
		}
		out.WriteString(s[:at])
		body, rest, closed := strings.Cut(s[at+2:], "}")
		if !closed {
			return "", nil, "${ without a closing }", literal
		}
		name, fallback, hasFallback := strings.Cut(body, ":-")
		if !variableName(name) {
			return "", nil, "no variable name after ${", literal
		}
		if strings.Contains(fallback, "${") {
			return "", nil, fmt.Sprintf("the default of ${%s} holds another ${", name), "a default is plain text"
		}
		value, set := env(name)
		switch {
		case hasFallback && value == "":
			value = fallback
		case !set:
			return "", nil, fmt.Sprintf("environment variable %s is not set", name), fmt.Sprintf("set it, or write ${%s:-default}", name)
		}
		values = append(values, value)
		out.WriteString(value)
		s = rest
	}
}

// escape is the inverse of expand: text that reads as itself.
func escape(s string) string { return strings.ReplaceAll(s, "${", "$${") }

func variableName(s string) bool {
	for i, c := range []byte(s) {
		letter := c == '_' || 'a' <= c && c <= 'z' || 'A' <= c && c <= 'Z'
		if !letter && (i == 0 || c < '0' || c > '9') {
			return false
		}
	}
	return s != ""
}

// substitution remembers an expanded value: its text, how it was written, and
// what its variables stood for.
type substitution struct {
	text, written string
	values        []string
}

// Shorter text is not looked for in messages, where it would be found in the
// middle of words: whole values outside quotes, and parts of a variable.
const (
	shortestText = 4
	shortestPart = 8
)

// hide puts back what was written wherever a message repeats expanded text, as a
// whole or in part.
func hide(message string, subs []substitution) string {
	for _, s := range subs {
		quoted := strconv.Quote(s.text)
		message = strings.ReplaceAll(message, quoted, strconv.Quote(s.written))
		if len(s.text) >= shortestText {
			message = strings.ReplaceAll(message, quoted[1:len(quoted)-1], s.written)
			message = strings.ReplaceAll(message, s.text, s.written)
		}
	}
	for _, s := range subs {
		for _, value := range s.values {
			message = hideParts(message, value)
		}
	}
	return message
}

// hideParts replaces the parts of a value that are left in a message, longest
// first at each place.
func hideParts(message, value string) string {
	var out strings.Builder
	for i := 0; i < len(message); {
		n := 0
		for n < len(message)-i && strings.Contains(value, message[i:i+n+1]) {
			n++
		}
		if n >= shortestPart {
			out.WriteString("[...]")
			i += n
			continue
		}
		out.WriteByte(message[i])
		i++
	}
	return out.String()
}
