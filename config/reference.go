package config

import (
	"fmt"
	"strings"

	"github.com/gobridge/gobridge"
)

// Reference returns the keys of the config file as Markdown: a table for each
// block, in the order of the file.
func Reference(kinds *gobridge.Kinds) string {
	var out strings.Builder
	out.WriteString(referenceIntro)
	for _, b := range walk(kinds) {
		switch {
		case b.path == "":
			out.WriteString("\n## The file\n\n")
		default:
			fmt.Fprintf(&out, "\n## %s\n\n", b.path)
		}
		if b.same != "" {
			fmt.Fprintf(&out, "The keys of [%s](#%s).\n", b.same, anchor(b.same))
			continue
		}
		out.WriteString("| key | type | default | |\n|---|---|---|---|\n")
		for _, f := range b.fields {
			fmt.Fprintf(&out, "| `%s` | %s | %s | %s |\n", f.key, typeCell(f, b), defaultCell(f), cell(f.doc))
		}
	}
	return out.String()
}

const referenceIntro = `# Config reference

<!-- Made from the Go structs by "go generate ./config". Do not edit. -->

One YAML file (JSON is YAML too) describes the bridge and the daemon around it. ` + "`gobridge validate FILE`" + ` reports every
fault at once as ` + "`file:line:col: where: what (hint)`" + `; ` + "`gobridge schema`" + ` prints the JSON Schema for editors, and
` + "`gobridge config show`" + ` the file with all defaults, secrets masked.

- **Strict.** Unknown and duplicate keys, wrong types and bare numbers where a duration belongs are errors.
- **Durations** have a unit: ` + "`500ms`, `30s`, `15m`, `1h30m`" + `. Keys of the type *seconds or duration* also take whole seconds.
- **Variables.** ` + "`${VAR}` and `${VAR:-default}`" + ` are replaced once, in parsed values; the default applies when VAR is unset or
  empty, an unset VAR without one is an error, and ` + "`$${`" + ` is a literal ` + "`${`" + `. The text is never read as YAML. In a key that is no
  string (` + "`max_in_flight: ${WINDOW}`" + `) it is read as that key's type.
- **YAML.** Anchors and aliases work for whole values (` + "`policy: *common`" + `). Merge keys (` + "`<<`" + `), explicit tags and more than one
  document are refused. Only ` + "`true` and `false`" + ` are booleans; integers are decimal. An empty value is allowed only for
  blocks and lists. A file has at most 4 MiB and 64 levels.
- **Inline.** A receiver may be written in its route (` + "`receiver:`" + `), a sender in its binding (` + "`sender:`" + `).
`

func typeCell(f field, b block) string {
	at := join(b.path, f.key)
	k := kindOf(f.typ)
	switch {
	case len(f.enum) > 0:
		return "`" + strings.Join(f.enum, "` `") + "`"
	case k == kindBlock:
		return "[block](#" + anchor(at) + ")"
	case k == kindList && kindOf(f.typ.Elem()) == kindBlock:
		return "[list of blocks](#" + anchor(at+"[]") + ")"
	case k == kindList:
		return "list of " + kindOf(f.typ.Elem()).String() + "s"
	case k == kindOptions && len(b.options) > 0:
		var links []string
		for _, o := range b.options {
			links = append(links, fmt.Sprintf("[%s](#%s)", o.kind, anchor(at+" ("+o.kind+")")))
		}
		return "block: " + strings.Join(links, ", ")
	}
	text := k.String()
	switch {
	case f.min != "" && f.max != "":
		text += ", " + f.min + " to " + f.max
	case f.min != "":
		text += ", at least " + f.min
	case f.max != "":
		text += ", at most " + f.max
	}
	return text
}

func defaultCell(f field) string {
	switch {
	case f.required:
		return "required"
	case f.def == "":
		return ""
	case f.derived:
		return cell(f.def)
	}
	return "`" + f.def + "`"
}

func cell(s string) string { return strings.ReplaceAll(s, "|", `\|`) }

// anchor is the fragment under which Markdown viewers find a heading.
func anchor(heading string) string {
	return strings.Map(func(r rune) rune {
		switch {
		case 'A' <= r && r <= 'Z':
			return r + 'a' - 'A'
		case 'a' <= r && r <= 'z', '0' <= r && r <= '9', r == '_', r == '-':
			return r
		case r == ' ':
			return '-'
		}
		return -1
	}, heading)
}
