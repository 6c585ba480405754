"""The controls of an explorer, found and moved in the page as a reader moves them."""

from __future__ import annotations

from dataclasses import dataclass

MOVE_SECONDS = 20
# An explorer is an outermost box of widgets that holds a picture.
BOXES = """() => [...document.querySelectorAll('.widget-box')].filter(
    box => !box.parentElement.closest('.widget-box') && box.querySelector('img'))"""
CONTROLS = {
    "slider": ".noUi-handle",
    "select": "select",
    "checkbox": "input[type=checkbox]",
    "toggles": ".widget-toggle-buttons",
    "radio": ".widget-radio-box",
    "number": "input[type=number]",
    "button": "button.widget-button:not(.mod-primary)",
    "player": ".widget-play",
    "toggle": "button.widget-toggle-button:not(.widget-toggle-buttons button)",
}


@dataclass
class Explorer:
    """One explorer on the page: its box, an ElementHandle."""

    page: object
    box: object

    def picture(self) -> str:
        """The address of its picture, which holds the picture itself."""
        return self.box.evaluate("box => box.querySelector('img')?.src ?? ''")

    def is_drawn(self) -> bool:
        """Whether the browser could decode its picture."""
        return self.box.eval_on_selector(
            "img", "image => image.decode().then(() => image.naturalWidth > 1, () => false)"
        )

    def controls(self) -> list[tuple[str, object]]:
        """(kind, element) of each control that can be seen and used."""
        found = []
        for kind, selector in CONTROLS.items():
            for element in self.box.query_selector_all(selector):
                if element.is_visible() and element.is_enabled():
                    found.append((kind, element))
        return found

    def move(self, kind: str, element) -> bool:
        """The control is moved, and further, until the picture changes; whether it did.

        True for a slider that other controls have disabled: it must not change anything.
        """
        if element.evaluate("one => one.closest('[disabled]') !== null"):
            return True
        before = self.picture()
        return any(self._changes_from(before, act) for act in _MOVES[kind](self.page, element))

    def _changes_from(self, before: str, act) -> bool:
        from playwright.sync_api import TimeoutError as TooLate

        act()
        run = self.box.query_selector("button.mod-primary")
        if run is not None:  # the picture of a slow explorer follows this button
            run.click()
        try:
            self.page.wait_for_function(
                "([box, before]) => box.querySelector('img')?.src !== before",
                arg=[self.box, before],
                timeout=MOVE_SECONDS * 1000,
            )
        except TooLate:
            return False
        return True


def explorers(page) -> list[Explorer]:
    """The explorers on the page, from top to bottom."""
    boxes = page.evaluate_handle(BOXES)
    count = boxes.evaluate("all => all.length")
    return [Explorer(page, boxes.get_property(str(index)).as_element()) for index in range(count)]


def _press(page, element, key: str):
    def act():
        element.focus()
        page.keyboard.press(key)

    return act


def _slider_moves(page, element) -> list:
    at_end = element.get_attribute("aria-valuenow") == element.get_attribute("aria-valuemax")
    return [_press(page, element, key) for key in (("Home",) if at_end else ("ArrowRight", "End"))]


def _select_moves(page, element) -> list:
    count = element.evaluate("select => select.options.length")
    now = element.evaluate("select => select.selectedIndex")
    others = [index for index in range(count) if index != now]
    return [lambda index=index: element.select_option(index=index) for index in others]


def _choice_moves(selector: str):
    def moves(page, element) -> list:
        return [choice.click for choice in element.query_selector_all(selector)]

    return moves


def _number_moves(page, element) -> list:
    return [_press(page, element, key) for key in ("ArrowUp", "ArrowDown")]


def _click_moves(page, element) -> list:
    return [element.click]


def _player_moves(page, element) -> list:
    return [element.query_selector("button").click]


_MOVES = {
    "slider": _slider_moves,
    "select": _select_moves,
    "checkbox": _click_moves,
    "toggles": _choice_moves("button:not(.mod-active)"),
    "radio": _choice_moves("input:not(:checked)"),
    "number": _number_moves,
    "button": _click_moves,
    "player": _player_moves,
    "toggle": _click_moves,
}
